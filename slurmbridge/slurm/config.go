package slurm

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Config returns slurmctld's configuration as `scontrol show config` prints it,
// key by key; values are as they stand there, "" for "(null)". It is asked for
// again when it is older than ConfigEvery.
func (c *Client) Config(ctx context.Context) (map[string]string, error) {
	every := c.ConfigEvery
	if every == 0 {
		every = 5 * time.Minute
	}
	return c.config.get(c.now(), every, func() (map[string]string, error) {
		out, _, err := c.run(ctx, command{name: "scontrol show config", prog: "scontrol", args: []string{"show", "config"}})
		if err != nil {
			return nil, err
		}
		return ParseConfig(out), nil
	})
}

// ParseConfig reads `scontrol show config`: lines of "Key   = value". Of a key
// that stands twice (cgroup.conf follows slurm.conf) the first one counts.
func ParseConfig(out []byte) map[string]string {
	config := map[string]string{}
	for line := range bytes.Lines(out) {
		key, value, ok := strings.Cut(string(line), "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if _, seen := config[key]; !ok || seen || key == "" || strings.ContainsAny(key, " \t") {
			continue
		}
		if value == "(null)" {
			value = ""
		}
		config[key] = value
	}
	return config
}

// Release returns slurmctld's version, e.g. "22.05.8".
func (c *Client) Release(ctx context.Context) (string, error) {
	config, err := c.Config(ctx)
	return config["SLURM_VERSION"], err
}

// Ping returns nil if a slurmctld answers, ErrDown if none does.
func (c *Client) Ping(ctx context.Context) error {
	_, _, err := c.run(ctx, command{name: "scontrol ping", prog: "scontrol", args: []string{"ping"}})
	var ce *CommandError
	if errors.As(err, &ce) { // it says so on standard output
		ce.Kind = job.ErrDown
	}
	return err
}

// Partition is a partition as far as people ask about it.
type Partition struct {
	Name    string
	Default bool
	Up      bool
	Nodes   string            // host list
	Fields  map[string]string // all of it, as scontrol prints it
}

// Partitions returns the cluster's partitions.
func (c *Client) Partitions(ctx context.Context) ([]Partition, error) {
	out, _, err := c.run(ctx, command{name: "scontrol show partitions", prog: "scontrol", args: []string{"-o", "-a", "show", "partitions"}})
	if err != nil {
		return nil, err
	}
	return ParsePartitions(out), nil
}

// ParsePartitions reads `scontrol show partitions -o`.
func ParsePartitions(out []byte) []Partition {
	var parts []Partition
	for line := range bytes.Lines(out) {
		if !bytes.HasPrefix(line, []byte("PartitionName=")) {
			continue
		}
		f := map[string]string{}
		for word := range strings.FieldsSeq(string(line)) {
			if key, value, ok := strings.Cut(word, "="); ok {
				if _, seen := f[key]; !seen {
					f[key] = value
				}
			}
		}
		if f["PartitionName"] == "" {
			continue
		}
		nodes := f["Nodes"]
		if isNone(nodes) {
			nodes = ""
		}
		parts = append(parts, Partition{
			Name: f["PartitionName"], Default: f["Default"] == "YES", Up: f["State"] == "UP", Nodes: nodes, Fields: f,
		})
	}
	return parts
}

// rewritesTypes tells whether a release lets Gres= turn gpu:shared into shares:
// from 23.02.6 on. Before, it merges the new request with the old one and refuses
// (or, worse, asks for both).
func rewritesTypes(release string) bool {
	var v [3]int64
	for i, part := range strings.SplitN(release, ".", 3) {
		v[i], _ = leading([]byte(part))
	}
	return slices.Compare(v[:], []int64{23, 2, 6}) >= 0
}
