"""The rules of the audit, as queries over `facts`, in Spark's SQL (`engines.duckdb_sql`)."""
