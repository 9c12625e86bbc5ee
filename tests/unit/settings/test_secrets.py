"""Secrets are masked wherever a configuration is printed."""

import pytest

from towpath.settings.secrets import MASKED, masked


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://u:pw@h/d", f"postgresql://u:{MASKED}@h/d"),
        ("postgresql://u:p@w@h/d", f"postgresql://u:{MASKED}@h/d"),
        ("postgresql://u:p/w@h/d", f"postgresql://u:{MASKED}@h/d"),
        ("redis://:pw@h:1/0", f"redis://:{MASKED}@h:1/0"),
        ("postgresql://u@h/d", "postgresql://u@h/d"),
        ("http://h:8081/x", "http://h:8081/x"),
        ("host=h password=pw user=u", f"host=h password={MASKED} user=u"),
        ("host=h password = 'a b\\' c' user=u", f"host=h password = {MASKED} user=u"),
        (
            'Module username="u" password="a b\\" c";',
            f'Module username="u" password={MASKED};',
        ),
        (
            "postgresql://u@h/d?sslpassword=pw&sslmode=require",
            f"postgresql://u@h/d?sslpassword={MASKED}&sslmode=require",
        ),
    ],
)
def test_a_password_in_an_address_is_masked(text: str, shown: str) -> None:
    """
    It is masked in a URL, in its options and in key=value pairs; the rest is shown.
    """
    assert masked(text) == shown


@pytest.mark.parametrize(
    "name",
    [
        "token",
        "auth_token",
        "credential",
        "aws_credentials",
        "ssl.key.pem",
        "password",
        "client_secret",
        "salt",
        "sasl.oauthbearer.config",
        "TOKEN",
        "Sasl.Password",
        "ssl.certificate.PEM",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "adls.account-key",
        "adls.connection-string",
        "spark.hadoop.fs.azure.account.key.store",
        "api_key",
        "apiKey",
        "Authorization",
    ],
)
def test_a_secret_is_recognized_by_name_in_any_case(name: str) -> None:
    """
    Words such as token count anywhere in the name, and apply to values in lists, too.
    """
    assert {name: MASKED, "x": [{name: [MASKED]}]} == masked(
        {name: "value", "x": [{name: ["value"]}]}
    )


@pytest.mark.parametrize(("value", "shown"), [(1234, MASKED), (True, True)])
def test_a_secret_of_digits_alone_is_masked(value: object, shown: object) -> None:
    """
    Options of another package's sink may be numbers, but a boolean is not a secret.
    """
    assert {"options": {"password": shown}} == masked({"options": {"password": value}})


def test_a_name_that_only_resembles_a_secret_is_shown() -> None:
    """
    A file's name may end in .pem; in a key's name, pem counts only at the end.
    """
    shown = {"ssl.ca.location": "/etc/ca.pem", "pem.folder": "/etc", "user": "u"}

    assert shown == masked(shown)


def test_a_password_in_options_is_masked_in_any_case() -> None:
    """
    Libpq accepts option names only in lower case, but other clients accept any case.
    """
    assert f"host=h Password={MASKED}" == masked("host=h Password=pw")


def test_secrets_are_masked_by_their_keys_at_any_depth() -> None:
    """
    Salts and passwords are masked; an empty one is shown as empty.
    """
    document = {
        "kafka": {"client": {"sasl.password": "a", "sasl.username": "b"}},
        "relay": {"rows": {"mask": [{"salt": "c", "form": "hash"}, {"salt": ""}]}},
        "sink": [{"url": "redis://x:y@h"}],
        "n": 5,
    }
    expected = {
        "kafka": {"client": {"sasl.password": MASKED, "sasl.username": "b"}},
        "relay": {"rows": {"mask": [{"salt": MASKED, "form": "hash"}, {"salt": ""}]}},
        "sink": [{"url": f"redis://x:{MASKED}@h"}],
        "n": 5,
    }

    assert expected == masked(document)


def test_a_transform_shows_the_name_of_its_secret() -> None:
    """
    Its salt is the name of one of the sink's secrets, which are masked.
    """
    route = {"transforms": [{"hash": "email", "salt": "people"}], "salt": "c"}
    document = {"sink": [{"hash_salts": {"people": "c"}, "route": [route]}]}
    expected = {
        "sink": [
            {
                "hash_salts": {"people": MASKED},
                "route": [{**route, "salt": MASKED}],
            }
        ]
    }

    assert expected == masked(document)
