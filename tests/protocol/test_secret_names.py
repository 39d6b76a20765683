"""Secrets are hidden by names of settings and options, in addresses and texts."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from waiting import soon

import looptap
from looptap.agent.run.flat_settings import flat_settings
from looptap.protocol.secret_names import HIDDEN, diff_without_secrets, secret, without_secrets, words_without_secrets

SECRETS = """
    api_key apiKey API_KEY APIKey openai.api_key key ssh_key privateKey secretKey aws_secret_access_key
    AWS_SECRET token hf_token hfToken HF_TOKEN authToken auth_token authorization bearer bearer_token jwt
    JWT_SIGNING pwd db_pwd pat github_pat GH_PAT secret client_secret credential credentials
    gcp.credentials_json passwd password PGPASSWORD db.password passphrase cookie cookies session session_id
    signature sig url_signature dsn sentry_dsn db_dsn apikey accessToken refresh_token webhook_url
    connection_string conn_str api_keys access_tokens oauth oauth2_code auth basic_auth wandb_key x-api-key
    account_key sas_token master_key encryption_key license_key signing_key otp
"""
ORDINARY = """
    tokenizer num_tokens keys max_tokens monkey author authors pattern patience lr path compat passes bypass
    keyboard keypoints hotkey tokenized num_keys authority sessions significance sigma design assign signal
    patch patches secretary weight_decay optimizer.lr dataset.name patch_size
"""
TEXTS = [
    "https://h/x?access_token=S3CR&y=1", "https://h/?sig=S3CR#token=S3CR", "postgres://u:S3CR@h/db",
    "postgres://u:S3/CR@h/db", "redis://:S3CR@h:1", "Server=a;User Id=b;Password=S3CR;", "user:S3CR@host",
    "AccountName=n;AccountKey=S3CR+/==;EndpointSuffix=x", "host=h user=u password=S3CR dbname=d",
    "Authorization: Bearer S3CRabcdef", "'X-Api-Key: S3CR'", '{"api_key": "S3CR", "lr": 0.1}', "model.api_key='S3CR'",
    "hf_S3CRabcdefghijklmnop", "ghp_S3CRabcdefghijklmnop", "AKIAS3CRABCDEFGHIJKL", "note: token=S3CR",
    "https://hooks.slack.com/services/T0/B0/S3CR", "eyJS3CRabcdef.eyJS3CR.S3CR", "-----BEGIN RSA PRIVATE KEY-----S3CR",
]  # fmt: skip
OPTIONS = [
    ["--api-key", "S3CR"], ["--api-key=S3CR"], ["--apiKey", "-S3CR"], ["-token", "S3CR"], ["--hub_token=S3CR"],
    ["model.api_key=S3CR"], ["+db.password=S3CR"], ["--set", "db.password=S3CR"], ["--set=api_key=S3CR"],
    ["-u", "me:S3CR"], ["--header", "Authorization: Bearer S3CRabcdef"], ["--env", "WANDB_API_KEY=S3CR"],
    ["-c", "login(token='S3CR')"], ["--url=https://h/?access_token=S3CR"], ["--db", "pg://u:S3CR@h"],
]  # fmt: skip
PLAIN_TEXTS = [
    "tokenizer=bert", "step: 4, lr=0.1", "https://h:80/x?page=2", "12:30:11 me@host", "a@b.c", "git@github.com:x/y.git",
    "num_key_value_heads=8 key_dim=64", "--x a:b", "s3://bucket/key/part", "cuda:0",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRETS.split())
def test_the_value_of_a_name_that_suggests_a_secret_is_hidden(name):
    assert secret(name, "abc")
    hidden = {f"a.{name}": HIDDEN, f"{name}.b": HIDDEN}
    assert flat_settings({"a": {name: "abc"}, name: {"b": "abc"}}).settings == hidden
    for words in ([f"--{name}", "abc"], [f"--{name}=abc"], [f"{name}=abc"], [f"https://h/?{name}=abc"]):
        assert "abc" not in " ".join(words_without_secrets(words))


@pytest.mark.parametrize("name", ORDINARY.split())
def test_the_value_of_another_name_is_shown(name):
    assert not secret(name, "abc")
    assert words_without_secrets([f"--{name}", "abc", f"--{name}=abc"]) == [f"--{name}", "abc", f"--{name}=abc"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_key_value_heads", 8), ("pad_token_id", 50_256), ("pad_token", "<pad>"), ("use_auth", True), ("token", None)],
)
def test_sizes_switches_and_special_tokens_are_shown(name, value):
    assert flat_settings({name: value}).settings == {name: value}


def test_a_numeric_password_is_hidden():
    found = flat_settings({"db_password": 1234, "token": 123_456_789})
    assert found.settings == {"db_password": HIDDEN, "token": HIDDEN}


@pytest.mark.parametrize("text", TEXTS)
def test_a_secret_within_a_text_is_hidden(text):
    assert "S3" not in without_secrets(text)
    assert "S3" not in str(flat_settings({"note": text, "list": [text]}).settings)


@pytest.mark.parametrize("text", PLAIN_TEXTS)
def test_another_text_is_shown(text):
    assert without_secrets(text) == text


@pytest.mark.parametrize("words", OPTIONS)
def test_a_secret_in_a_command_line_is_hidden(words):
    assert "S3CR" not in " ".join(words_without_secrets(["python", "train.py", *words, "--lr", "0.1"]))


def test_what_a_diff_assigns_to_secret_names_is_hidden_and_code_is_not():
    code = "+token = tokens[0]\n+key = jax.random.key(0)\n+for key in keys:\n+    f(key=key, author='me')\n"
    assert diff_without_secrets(code) == code
    secrets = (
        "+api_key = 'S3CR'\n+{'token': 'S3CR'}\n+os.environ['HF_TOKEN'] = \"S3CR\"\n+f(password=f'S3CR')\n"
        "+export WANDB_API_KEY=S3CR\n+token: S3CR\n+url = 'pg://u:S3CR@h'\n+x = 'hf_S3CRabcdefghijklmnop'\n"
    )
    assert "S3" not in diff_without_secrets(secrets)


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_files_of_a_run_are_only_for_their_owner(umask, directory, monkeypatch, tmp_path):
    before = os.umask(umask)
    try:
        with looptap.Agent("private", store=tmp_path / "runs", config={"lr": 0.1}) as agent:
            agent.stream("loss", "loss", on="batch", keep=True)
            with looptap.attach("private"):
                agent.emit("batch", loss=0.5)
                soon(lambda: len(_files(tmp_path / "runs")) == 3)  # with its -wal and -shm
                readable = [one for one in _files(tmp_path) if _mode(one) & 0o077]
        assert not readable
        assert [_mode(one) for one in _files(tmp_path / "runs")] == [0o600]
    finally:
        os.umask(before)


def _files(folder: Path) -> list[Path]:
    return [one for one in folder.rglob("*") if one.is_file()]


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
