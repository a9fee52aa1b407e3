"""Transports: one contract (base), one implementation a module, one registry of aliases."""
