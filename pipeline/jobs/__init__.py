"""Jobs on queues and events that run on Spark.  docs/pipeline.md"""
