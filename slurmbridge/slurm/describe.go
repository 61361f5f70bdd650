package slurm

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// checkRefs refuses names that are no job's, so that no text can become an option or a
// second job.
func checkRefs(what string, refs ...string) error {
	for _, ref := range refs {
		if !text.ValidRef(ref) {
			return fmt.Errorf("%s: %q is no job: %w", what, ref, job.ErrNoJob)
		}
	}
	return nil
}

// Describe reads the state of jobs by name, including ended jobs that slurmctld still remembers
// (MinJobAge, 300 s by default). A forgotten job isn't in the answer.
func (c *Client) Describe(ctx context.Context, refs []string) (map[string]job.Description, error) {
	if err := checkRefs("describe", refs...); err != nil || len(refs) == 0 {
		return nil, err
	}
	nonce := text.NewNonce()
	out, _, err := c.run(ctx, command{
		name: "squeue", prog: "squeue",
		args: []string{"--noheader", "--all", "--array", "--local", "--states=all", "--jobs=" + strings.Join(refs, ",")},
		env:  []string{"SQUEUE_FORMAT2=" + text.DescriptionFormat(nonce)},
	})
	if errors.Is(err, job.ErrNoJob) {
		return nil, nil // it has forgotten all of them
	}
	if err != nil {
		return nil, err
	}
	return text.ParseDescriptions(out, nonce)
}

// TaskName names the array task that has a number now, as in "120_4"; of any other job it is the number.
func (c *Client) TaskName(ctx context.Context, id int64) (string, error) {
	number := strconv.FormatInt(id, 10)
	out, _, err := c.run(ctx, command{
		name: "squeue", prog: "squeue",
		args: []string{"--noheader", "--all", "--array", "--local", "--jobs=" + number, "--Format=jobarrayid:32,jobid:32"},
	})
	if errors.Is(err, job.ErrNoJob) {
		return number, nil
	}
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) == 2 && f[1] == number && text.ValidRef(f[0]) {
			return f[0], err
		}
	}
	return number, err
}

// Requeue makes a batch job run again, from its beginning. It is pending for some seconds before it
// may start.
func (c *Client) Requeue(ctx context.Context, ref string) error {
	if err := checkRefs("requeue", ref); err != nil {
		return err
	}
	_, _, err := c.run(ctx, command{name: "scontrol requeue", prog: "scontrol", args: []string{"requeue", ref}})
	return err
}
