"""The privacy budget of this site: the durable ledger and its leases; see README.md."""
