# Titles as they stand in an address: `slug "Hello World"` prints hello-world.
slug() {
    printf '%s\n' "$1" | tr 'A-Z ' 'a-z-'
}
