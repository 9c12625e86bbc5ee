"""Secrets do not show, wherever a configuration is printed."""

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
    In a URL, in its options and in key=value pairs; the rest of the address stays.
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
def test_a_secret_is_known_by_its_name_in_any_case(name: str) -> None:
    """
    Each word that names a secret counts, at every place of the name, in lists too.
    """
    assert {name: MASKED, "x": [{name: [MASKED]}]} == masked(
        {name: "value", "x": [{name: ["value"]}]}
    )


@pytest.mark.parametrize(("value", "shown"), [(1234, MASKED), (True, True)])
def test_a_secret_of_digits_alone_is_masked(value: object, shown: object) -> None:
    """
    Options of another package's sink may be numbers; a switch is no secret.
    """
    assert {"options": {"password": shown}} == masked({"options": {"password": value}})


def test_a_name_that_only_resembles_a_secret_is_shown() -> None:
    """
    A file's name ends in .pem as a value, and a key only at its end.
    """
    shown = {"ssl.ca.location": "/etc/ca.pem", "pem.folder": "/etc", "user": "u"}

    assert shown == masked(shown)


def test_a_password_in_options_is_masked_in_any_case() -> None:
    """
    Libpq takes names of options in lower case only; others do not.
    """
    assert f"host=h Password={MASKED}" == masked("host=h Password=pw")


def test_secrets_are_masked_by_their_keys_at_any_depth() -> None:
    """
    Salts, passwords and tokens; an empty one shows that there is none.
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


def test_a_transform_shows_which_secret_it_takes() -> None:
    """
    Its salt is a name of the sink's secrets, which do not show themselves.
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
