"""Language-model pre-training: text, tokens, a GPT, its loss, and the loop that trains it.

Called by `hoptui train` and by tests; uses `hoptui_trainer.common` and hoptui's public API, and knows no
other workload.
"""
