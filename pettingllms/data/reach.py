"""Is the Hugging Face hub within reach? Its own client waits without end for an answer.

Behind many firewalls a connection is made, or seems to be, and nothing ever comes back.
"""

from __future__ import annotations

HUB_SECONDS = 4.0
"""Until a hub that does not answer counts as out of reach."""


def hub_answers() -> bool:
    """Returns whether the hub's address answers, or refuses at once; True in offline mode.

    What is refused at once is left to the hub's client, which says why.
    """
    import urllib.error
    import urllib.request
    from http.client import HTTPException

    from huggingface_hub import constants

    if constants.is_offline_mode():  # then it is not asked at all
        return True
    try:
        url = f"{constants.ENDPOINT}/api/whoami-v2"  # small, whoever asks
        urllib.request.urlopen(url, timeout=HUB_SECONDS).close()
    except TimeoutError:
        return False
    except urllib.error.URLError as error:
        # A status of 401 or 500 is an answer as well; its reason is a text.
        return not isinstance(error.reason, TimeoutError)
    except (OSError, HTTPException, ValueError):
        pass
    return True


def silence() -> str:
    """Says that the hub does not answer."""
    from huggingface_hub import constants

    return f"{constants.ENDPOINT} did not answer in {HUB_SECONDS:g} s"
