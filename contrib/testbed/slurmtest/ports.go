package slurmtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// port is a TCP port that no other cluster takes while this process lives: each
// holds a socket named after it, which the kernel gives to one only.
type port struct {
	number int
	claim  net.Listener
}

func (p *port) release() { _ = p.claim.Close() }

// freePorts takes n free ports, below the kernel's range for outgoing connections and above
// well-known services (Slurm's own 6817 among them).
func freePorts(n int) ([]*port, error) {
	const low, high = 12000, 32000
	var out []*port
	for range 100 * n {
		if len(out) == n {
			return out, nil
		}
		number := low + rand.IntN(high-low)
		claim, err := net.Listen("unix", fmt.Sprintf("@slurmtest-port-%d", number))
		if err != nil {
			continue
		}
		probe, err := net.Listen("tcp", ":"+strconv.Itoa(number))
		if err != nil {
			_ = claim.Close()
			continue
		}
		_ = probe.Close()
		out = append(out, &port{number: number, claim: claim})
	}
	if len(out) == n {
		return out, nil
	}
	for _, p := range out {
		p.release()
	}
	return nil, errors.New("find free ports: none are free")
}

// FreePort takes a free TCP port for another daemon of the cluster.
func (c *Cluster) FreePort() (string, error) {
	more, err := freePorts(1)
	if err != nil {
		return "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.others = append(c.others, more...)
	return strconv.Itoa(more[0].number), nil
}
