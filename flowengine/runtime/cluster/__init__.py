"""The Ray runtime: stages as actors on the nodes of a cluster. Needs flowengine[ray]."""
