"""Policies: what acts in the environments and is improved by the update.

Called by the rollout, the update and the evaluation; a policy knows no environment, only the sizes of what it
sees and does, draws no random numbers itself and never waits for the device.
"""
