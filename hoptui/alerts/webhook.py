"""One request to a webhook. No redirect is followed: it could carry the alert and its token elsewhere."""

from __future__ import annotations

import http.client
import os
import ssl
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from hoptui.alerts.messages import FORMATS
from hoptui.alerts.secret_values import DeliveryError, secret_value
from hoptui.domain.alerts import Alert, AlertTarget
from hoptui.domain.facts import fact
from hoptui.protocol import VERSION


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def send(alert: Alert, target: AlertTarget, limit_s: float) -> None:
    """Send an alert to a webhook. Proxies of the environment are used, and TLS is verified.

    Args:
        limit_s: for each step of the request, such as the connection. The caller limits the whole.

    Raises:
        DeliveryError: it was not accepted.
    """
    url, token = secret_value(target, "url"), secret_value(target, "token")
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        fits = False
    if not fits:
        raise DeliveryError(fact("alert.bad_url"))
    content = FORMATS[target.format](alert)
    headers = {"User-Agent": f"hoptui/{VERSION}", **content.headers, **target.headers}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        request = urllib.request.Request(url, content.body, headers, method="POST")
        with opener.open(request, timeout=limit_s):
            return
    except urllib.error.HTTPError as error:
        error.close()
        redirected = 300 <= error.code < 400
        why = fact("alert.redirected") if redirected else fact("alert.refused", status=error.code)
        raise DeliveryError(why) from None
    except urllib.error.URLError as error:
        raise _unreachable(error.reason) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _unreachable(error) from None


def _unreachable(error: object) -> DeliveryError:
    """Say what went wrong. Texts of exceptions are left out if they may quote the address."""
    if isinstance(error, TimeoutError):
        return DeliveryError(fact("alert.no_answer"))
    if isinstance(error, ssl.SSLCertVerificationError):
        return DeliveryError(fact("alert.certificate"))
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ssl.SSLError):
        known = error.errno > 0
        text = os.strerror(error.errno) if known else "the name of the host is not known"
        return DeliveryError(fact("alert.unreachable", error=text))
    return DeliveryError(fact("alert.unreachable", error=type(error).__name__))
