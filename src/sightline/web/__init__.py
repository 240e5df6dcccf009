"""The web app: `sightline serve`. A JSON API over trained models and stored few-shot classifiers, and a page.

settings   what `sightline serve` was asked for          security   hosts, tokens, origins, headers
server     sockets, processes, shutdown                  bodies     bounds on request bodies
app        the application and its errors                metrics    Prometheus metrics and the log
lanes      bounded thread pools                          batching   requests that arrive together run as one batch
store      classifiers in SQLite or PostgreSQL           fits       fitted classifiers, and embeddings, by version
models     the served models                             routes     one module for each part of the API
"""
