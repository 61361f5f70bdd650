package slurm

import (
	"context"
	"errors"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// Config returns slurmctld's configuration; see text.ParseConfig. It is read again
// when it is older than ConfigEvery.
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
		return text.ParseConfig(out), nil
	})
}

// Release returns slurmctld's version, e.g. "22.05.8".
func (c *Client) Release(ctx context.Context) (string, error) {
	config, err := c.Config(ctx)
	return config["SLURM_VERSION"], err
}

// Ping returns nil if a slurmctld answers, job.ErrDown if none does.
func (c *Client) Ping(ctx context.Context) error {
	_, _, err := c.run(ctx, command{name: "scontrol ping", prog: "scontrol", args: []string{"ping"}})
	var ce *CommandError
	if errors.As(err, &ce) { // it says so on standard output
		ce.Kind = job.ErrDown
	}
	return err
}

// Show runs one of Slurm's commands that changes nothing, and returns its output.
func (c *Client) Show(ctx context.Context, program string, args ...string) (string, error) {
	out, _, err := c.run(ctx, command{name: program, prog: program, args: args})
	return string(out), err
}
