package slurm

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// The gate is a job that never runs. It becomes eligible when the lease ends and
// has a deadline so soon after that its time limit doesn't fit before it: the
// first scheduling cycle that looks at it ends it as DEADLINE, and whatever
// depends on after:GATE is free. The bridge need not be there for that.
//
// The cycles that look at it are backfill's (bf_interval, 30 s by default, if
// anything changed since the last) and the periodic full one (sched_interval, 60 s
// by default); the quick look after each submission is not. So jobs are free
// between 0 and 60 s after the lease's end, less where the site sets less.
const (
	// gateLimit is the gate's time limit, Slurm's smallest.
	gateLimit = time.Minute
	// gateSlack is how long after the lease the deadline is; it must be less
	// than the limit.
	gateSlack = 30 * time.Second
	// gateTries is how often a gate is tightened before it is given up.
	gateTries = 3
)

// CreateGate submits the gate job. From 23.11 or so sbatch refuses a deadline that
// the job can't meet (scontrol doesn't), so it is submitted with one that it can,
// and tightened. A gate that can't be tightened is cancelled: it would run.
func (c *Client) CreateGate(ctx context.Context, lease time.Duration) (string, error) {
	s := seconds(lease)
	args := []string{
		"--parsable", "--job-name=" + job.GateName, "--comment=" + job.GateName,
		"--begin=now+" + strconv.Itoa(s), "--deadline=now+" + strconv.Itoa(s+2*seconds(gateLimit)), "--time=1",
		"--nodes=1", "--ntasks=1", "--mem=1", "--no-requeue", "--export=NONE", "--chdir=/",
		"--input=/dev/null", "--output=/dev/null", "--error=/dev/null",
	}
	args = append(args, c.GateOptions...)
	out, _, err := c.run(ctx, command{name: "sbatch", prog: "sbatch", args: args, stdin: "#!/bin/sh\nexit 0\n"})
	if err != nil {
		return "", err
	}
	id, _, _ := strings.Cut(strings.TrimSpace(string(out)), ";") // ";cluster" may follow
	if !text.ValidRef(id) {
		return "", fmt.Errorf("sbatch: answered %.80q: %w", out, job.ErrRefused)
	}
	for range gateTries {
		if err = c.RenewGate(ctx, id, lease); err == nil {
			return id, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.timeout())
	defer cancel()
	return "", errors.Join(err, c.OpenGate(cleanup, id))
}

// RenewGate makes the lease end the given time from now.
func (c *Client) RenewGate(ctx context.Context, id string, lease time.Duration) error {
	if err := checkRefs("gate", id); err != nil {
		return err
	}
	s := seconds(lease)
	return c.update(ctx, []string{id}, []string{
		"StartTime=now+" + strconv.Itoa(s), "Deadline=now+" + strconv.Itoa(s+seconds(gateSlack)),
	})
}

// OpenGate cancels the gate, if it is still there.
func (c *Client) OpenGate(ctx context.Context, id string) error {
	if err := checkRefs("gate", id); err != nil {
		return err
	}
	_, _, err := c.run(ctx, command{name: "scancel", prog: "scancel", args: []string{id}})
	if errors.Is(err, job.ErrNoJob) {
		return nil
	}
	return err
}

// seconds rounds up: a gate that opens a little late is better than one that
// can't be renewed in time.
func seconds(d time.Duration) int { return int((max(d, time.Second) + time.Second - 1) / time.Second) }
