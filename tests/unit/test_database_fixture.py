import sqlalchemy


def test_the_databases_under_test_are_real(database_url: str) -> None:
    engine = sqlalchemy.create_engine(database_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (a BIGINT)")
        connection.exec_driver_sql("INSERT INTO t VALUES (9007199254740993)")
        assert connection.exec_driver_sql("SELECT a FROM t").scalar_one() == 9007199254740993
    engine.dispose()
