"""The web console: pages about a fleet of queue managers, for people that run it.

`program` serves; `site` has the routes and their checks, `pages` the contents; `fleet` holds the
connections, `logins` the users; `actions` and `plans` change something, `jobs` in many steps.
docs/console.md, docs/decisions/0062.
"""
