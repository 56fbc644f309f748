"""Audits of what ranks read: of an assignment, of an epoch, and of loaders."""
