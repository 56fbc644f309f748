"""ZeRO and FSDP: the memory and the traffic of each rank, predicted and measured."""
