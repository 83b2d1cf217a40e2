"""Alerts: why they do not arrive, and which settings of them are not used."""

from __future__ import annotations

from collections.abc import Mapping

from hoptui.presentation import numbers
from hoptui.presentation.sentences.template import Entry, Fields, Write


def _idle(fields: Fields, _: Write) -> str:
    gpus = ", ".join(map(str, fields["gpus"]))
    verb = "GPU {} has" if len(fields["gpus"]) == 1 else "GPUs {} have"
    return f"{verb.format(gpus)} been idle for {numbers.duration(fields['idle_s'])}"


def _unknown(fields: Fields, _: Write) -> str:
    like = f", did you mean {fields['like']}?" if fields["like"] else ""
    return f"alerts have no setting {fields['key']}{like}"


SENTENCES: Mapping[str, Entry] = {
    # events
    "gpu.idle": _idle,
    "gpu.not_idle": "the GPUs work again",
    "alerts.suppressed": "more than {most} alerts in an hour: more alerts are suppressed",
    "alert.test": "this is a test of hoptui alerts",
    # of all targets
    "alerts.thread_ended": "alerts are not delivered any more: their thread has ended with {error}",
    "alerts.dropped": "{count} alerts were dropped: too many waited for their targets",
    "alerts.undelivered": "alerts do not reach {target} ({count} in a row): {why:fact}",
    # of one target
    "alert.no_answer": "it did not answer in time",
    "alert.killed": "it did not end within {limit_s:g} s and was killed",
    "alert.exit_code": "it ended with exit code {exit_code}",
    "alert.not_started": "it could not be started: {error}",
    "alert.refused": "it answered with HTTP status {status}",
    "alert.redirected": "it redirects to another address, which is not followed: set the final address",
    "alert.unreachable": "it cannot be reached: {error}",
    "alert.certificate": "its TLS certificate is not valid",
    "alert.bad_url": "its address is no http:// or https:// address",
    "alert.bad_secret": "its {key} is not one line of ASCII text",
    "alert.no_variable": "the variable that {key} names is not set in this process",
    "alert.no_file": "the file that {key} names is missing or empty",
    "alert.unreadable": "the file that {key} names cannot be read: {error}",
    "alert.failed": "an error of hoptui: {error}",
    # settings
    "alerts.no_table": "alerts is a table: [alerts]",
    "alerts.no_targets_table": "targets is a list of tables: [[alerts.targets]]",
    "alerts.too_many_targets": "there can be at most {most} targets",
    "alerts.unknown_key": _unknown,
    "alerts.wrong_value": "{key} takes {wanted}",
    "alerts.lacking": "the target lacks {key}",
}
