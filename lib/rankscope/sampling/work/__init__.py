"""What samples of unequal length cost: the work of an epoch, its picture and its explorer."""
