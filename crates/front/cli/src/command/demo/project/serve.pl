# Serves slugs: GET /Some%20Title answers with what slug.sh makes of the title.
# Uses no module, so that an image needs nothing of Perl but its program.
$SIG{CHLD} = 'IGNORE';
my ($inet6, $stream) = (10, 1);
socket(my $door, $inet6, $stream, 0) or die "socket: $!\n";
bind($door, pack('S n N a16 N', $inet6, 8080, 0, '', 0)) or die "bind: $!\n";
listen($door, 64) or die "listen: $!\n";
while (1) {
    accept(my $guest, $door) or next;
    next if fork;
    $SIG{CHLD} = 'DEFAULT';
    alarm 30;
    my ($title) = (<$guest> // '') =~ m{^GET /(\S*) HTTP/1\.[01]\r?\n} or exit;
    while (my $head = <$guest>) { last if $head =~ /^\r?\n/ }
    $title =~ s/%([0-9A-Fa-f]{2})/chr hex $1/ge;
    open(my $slug, '-|', 'sh', '-c', '. /app/slug.sh; slug "$1"', 'slug', $title) or exit;
    my $text = join '', <$slug>;
    syswrite $guest, "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\nContent-Length: "
        . length($text) . "\r\nConnection: close\r\n\r\n$text";
    exit;
}
