"""The record itself as JSON: the report that every other one can be made from again."""

from memdiag.errors import ReportError
from memdiag.records import codec
from memdiag.records.profile import Profile

FORMAT = "json"
FILE_NAME = "profile.json"


def render(profile: Profile) -> bytes:
    """Return `profile` as strict JSON in UTF-8.

    Raises:
        ReportError: a name in the profile is no valid text, such as an undecodable file name.
    """
    try:
        return codec.encode(profile)
    except UnicodeEncodeError as error:
        name = profile.model.path.encode("utf-8", "backslashreplace").decode("utf-8")
        raise ReportError(
            f"{name}: a name in the profile is not valid Unicode; rename the file and try again."
        ) from error
