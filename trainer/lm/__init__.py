"""Language-model pre-training: text, tokens, a GPT, its loss, and the loop that trains it.

Called by the `trainer` command and by tests; uses `trainer.common` and hoptui's public API, and knows no other workload.
"""
