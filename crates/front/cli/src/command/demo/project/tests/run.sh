# Runs every test and prints what it saw, as TAP.
count=0
failed=0
for file in tests/*.test.sh; do
    count=$((count + 1))
    name=$(sed -n '1s/^# //p' "$file")
    if sh "$file"; then
        echo "ok $count - $name"
    else
        echo "not ok $count - $name"
        failed=1
    fi
    printf '  ---\n  location: %s:1\n  ...\n' "$file"
done
echo "1..$count"
exit $failed
