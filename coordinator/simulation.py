"""A simulated federation: the coordinator's own round loop over virtual sites on one machine. No sockets, no Flower.

What a simulation is made of and what came of it, as plain values: the plan, its contract, the virtual sites and the
result that is printed. The engine is Flower's (`coordinator.flower_server.simulate`); what puts the two roles' apps
together stands above both, in `confide_simulation`.
"""
