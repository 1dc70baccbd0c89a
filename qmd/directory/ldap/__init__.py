"""LDAP, as far as Active Directory needs it."""
