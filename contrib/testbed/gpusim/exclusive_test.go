package gpusim

import (
	"errors"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// In exclusive use a GPU has one process with a context of its own; clients of an MPS server have none.
func TestExclusiveProcess(t *testing.T) {
	st, _ := machine(t, Config{Exclusive: true})
	d, app := st.Device(0), steady("a", 1, rlcore.Use{})
	own := must.Get(d.Claim(Claimant{}, app))(t)
	_, err := d.ClaimServer(Claimant{})
	must.Equal(t, errors.Is(err, ErrExclusive), true, "a server beside a process")
	must.OK(t, own.Release())
	server := must.Get(d.ClaimServer(Claimant{PID: 1}))(t)
	_, err = d.Claim(Claimant{}, app)
	must.Equal(t, errors.Is(err, ErrExclusive), true, "a process beside a server")
	client := must.Get(d.Claim(Claimant{Server: 1}, app))(t)
	must.OK(t, client.Release(), server.Release(), d.SetExclusive(false))
	must.OK(t, must.Get(d.Claim(Claimant{}, app))(t).Release())
}
