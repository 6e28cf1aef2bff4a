#!/bin/sh
# A remote shell within a job of PBS, called like ssh: pbs_shell.sh HOST COMMAND LINE...
# pbs_tmrsh itself starts a program, without a shell: it takes a command line for a program's name.
host=$1
shift
exec pbs_tmrsh "$host" /bin/sh -c "$*"
