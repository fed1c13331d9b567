# a space becomes a dash
. ./slug.sh
test "$(slug 'Hello World')" = hello-world
