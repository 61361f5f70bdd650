package main

import (
	"io"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/packaging/manpage/mantest"
)

// manual is what gpuprof(8) has beyond the help.
const manual = `
# FILES

**/etc/slurmbridge/gpuprof.yaml**
: Settings, each with its default and its meaning. controller must be set.

**/run/slurmbridge/jobs**
: The jobs on this node, written by the hooks.

**/var/spool/slurmbridge**
: Records that wait for the controller.
`

func TestManual(t *testing.T) { mantest.Manual(t, newRoot(io.Discard, io.Discard), manual) }
