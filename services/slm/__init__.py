"""The home: runs the small model, owns requests, and calls the router and larger tiers.

Three loops: *client* (`service`: open, stream, abort) and *inter-model* (`peers`) live in the event loop;
*decode* (`home`, with `journeys`, `judging`, `visits`, `peer_watch`) has its own thread. They meet in
`commands`, which go to the decode thread, and in an `Outbound`, which comes back once a step.
"""
