package slurm

import (
	"bytes"
	"context"
)

// Show runs one of Slurm's commands that only shows something, and returns what
// it printed.
func (c *Client) Show(ctx context.Context, program string, args ...string) (string, error) {
	var out bytes.Buffer
	text, _, err := c.run(ctx, command{name: program, prog: program, args: args, out: &out})
	return string(text), err
}
