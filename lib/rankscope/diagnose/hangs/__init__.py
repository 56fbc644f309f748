"""Which rank is stuck, and where: from flight-recorder dumps or logs."""
