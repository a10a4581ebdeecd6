"""`ratekit db`: what it prints, and its exit codes."""

from __future__ import annotations

from support.servers import free_port


def test_upgrade_makes_the_tables_and_status_shows_it(ratekit, database_url):
    before = ratekit("db", "status", "--database", database_url)
    assert (before.code, "no migration" in before.out) == (3, True)
    assert "migrated to" in ratekit("db", "upgrade", "--database", database_url).out
    assert "already at" in ratekit("db", "upgrade", "--database", database_url).out
    after = ratekit("db", "status", "--json", "--database", database_url)
    assert (after.code, after.json["migration"]) == (0, "0001")


def test_url_comes_from_the_environment(ratekit, tmp_path, monkeypatch):
    monkeypatch.setenv("RATEKIT_DATABASE_URL", f"sqlite:///{tmp_path}/its.db")
    assert ratekit("db", "upgrade").code == 0
    assert (tmp_path / "its.db").exists()


def test_database_that_does_not_answer_is_exit_code_3_without_the_password(ratekit):
    ended = ratekit("db", "upgrade", "--database", f"postgresql://u:hunter2@127.0.0.1:{free_port()}/n")
    assert ended.code == 3
    assert ended.err.startswith("ratekit: the database does not answer")
    assert "hunter2" not in ended.err + ended.out


def test_unknown_database_is_exit_code_2(ratekit):
    ended = ratekit("db", "upgrade", "--database", "oracle://h/n")
    assert (ended.code, "'oracle' is unknown" in ended.err) == (2, True)
