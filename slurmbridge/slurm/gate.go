package slurm

import (
	"context"
	"errors"
	"fmt"
	"os/user"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// The gate is a job that never runs. It becomes eligible when the lease ends, and its deadline is so soon after that
// its time limit doesn't fit in between: the first scheduling cycle that considers the gate ends it as DEADLINE, and
// jobs that depend on after:GATE can start. This does not need the bridge.
//
// Cycles that consider the gate are backfill's (bf_interval, 30 s by default, if anything has changed) and the periodic
// full one (sched_interval, 60 s by default), but not the quick one after each submission. So jobs can start 0 to 60 s
// after the lease's end, or sooner if the site sets less.
//
// A cycle checks a job's deadline only after these conditions (job_scheduler.c, backfill.c of 22.05): the job isn't
// held, its begin time has come, its partition is up or draining and admits the job, each job before it in the
// partition could start, and the cycle hasn't reached a bound (bf_max_job_test, partition_job_depth, …). So the gate is
// in every partition where a job that it holds could start, and first in each. From 24.05 on slurmctld also ends, once
// a minute, all pending jobs that can't meet their deadlines (purge_old_job).
const (
	// gateSlack is the time from the lease's end to the deadline. It is shorter than the limit, or the gate could run,
	// but only a little, or purge_old_job would end the gate before the lease. scontrol may read the clock in a
	// different second for each of the two times.
	gateSlack = job.GateLimit - 2*time.Second
	// gateTries is how often CreateGate tries to tighten the deadline.
	gateTries = 3
)

// CreateGate submits the gate. Since about 23.11 sbatch refuses a deadline that the job can't meet (scontrol doesn't),
// so the gate is submitted with a later deadline, which is then tightened. If that fails, the gate is cancelled,
// because it would run. account is the gate's account if Slurm refuses the user's default account, else "".
func (c *Client) CreateGate(ctx context.Context, lease time.Duration, partitions []string) (id, account string,
	err error,
) {
	if err := checkPartitions(partitions); err != nil {
		return "", "", err
	}
	s := seconds(lease)
	args := []string{
		"--parsable", "--job-name=" + job.GateName, "--comment=" + job.GateComment(c.Name),
		"--begin=now+" + strconv.Itoa(s), "--deadline=now+" + strconv.Itoa(s+2*seconds(job.GateLimit)), "--time=1",
		"--nodes=1", "--ntasks=1", "--mem=1", "--no-requeue", "--export=NONE", "--chdir=/",
		"--input=/dev/null", "--output=/dev/null", "--error=/dev/null", "--priority=" + strconv.Itoa(job.GatePriority),
	}
	if len(partitions) > 0 {
		args = append(args, "--partition="+strings.Join(partitions, ","))
	}
	if self := c.federated(ctx); self != "" {
		args = append([]string{"--clusters=" + self}, args...)
	}
	submit := func(more ...string) ([]byte, string, error) {
		return c.run(ctx, command{prog: "sbatch", args: append(more, args...), stdin: "#!/bin/sh\nexit 0\n"})
	}
	out, said, err := submit()
	if errors.Is(err, job.ErrRefused) && strings.Contains(said, "Invalid account") {
		for _, account = range c.accounts(ctx) {
			if out, _, err = submit("--account=" + account); !errors.Is(err, job.ErrRefused) {
				break
			}
		}
	}
	if err != nil {
		return "", "", err
	}
	id, _, _ = strings.Cut(strings.TrimSpace(string(out)), ";") // "ID;CLUSTER"
	if !text.ValidRef(id) {
		return "", "", fmt.Errorf("sbatch: answered %.80q: %w", out, job.ErrRefused)
	}
	for range gateTries {
		if err = c.RenewGate(ctx, id, lease); err == nil {
			return id, account, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.Timeout)
	defer cancel()
	return "", "", errors.Join(err, c.OpenGate(cleanup, id))
}

// federated returns this cluster's name if it is in a federation, else "". Without --clusters the gate would be on all
// clusters of the federation, where other daemons would take it for their own.
func (c *Client) federated(ctx context.Context) string {
	out, err := c.ask(ctx, "scontrol", "show", "federation")
	if err != nil {
		return ""
	}
	return text.FederatedSelf(out)
}

// mostAccounts bounds the accounts that are tried for a gate.
const mostAccounts = 8

// accounts returns the accounts in which the bridge's user may submit jobs, by Slurm's database; nil = unknown.
func (c *Client) accounts(ctx context.Context) []string {
	self, err := user.Current()
	if err != nil {
		return nil
	}
	out, err := c.ask(ctx, "sacctmgr", "-n", "-P", "show", "assoc", "user="+self.Username, "format=account")
	all := slices.Compact(slices.Sorted(strings.FieldsSeq(string(out))))
	all = slices.DeleteFunc(all, func(a string) bool { return !plainName.MatchString(a) })
	if err != nil {
		return nil // the gate's refusal is reported instead
	}
	return all[:min(len(all), mostAccounts)]
}

// plainName matches names that are safe as arguments.
var plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.@-]*$`)

// RenewGate makes the lease end after the given time from now.
func (c *Client) RenewGate(ctx context.Context, id string, lease time.Duration) error {
	s := seconds(lease)
	return c.update(ctx, []string{id}, []string{
		"StartTime=now+" + strconv.Itoa(s), "Deadline=now+" + strconv.Itoa(s+seconds(gateSlack)),
	})
}

// ClaimGate implements job.Slurm.
func (c *Client) ClaimGate(ctx context.Context, id string) error {
	return c.update(ctx, []string{id}, []string{"Comment=" + job.GateComment(c.Name)})
}

// MendGate releases the gate if it is held, moves it to the given partitions and gives it the highest priority. Slurm
// silently drops draining and inactive partitions from the list, so the gate may be in fewer.
func (c *Client) MendGate(ctx context.Context, g job.GateState, partitions []string) error {
	if err := errors.Join(checkRefs("gate", g.ID), checkPartitions(partitions)); err != nil {
		return err
	}
	if g.Priority == 0 { // setting a priority doesn't release a job that an administrator holds
		if _, err := c.ask(ctx, "scontrol", "release", g.ID); err != nil {
			return err
		}
	}
	err := c.update(ctx, []string{g.ID}, []string{"Priority=" + strconv.Itoa(job.GatePriority)})
	if len(partitions) == 0 || err != nil {
		return err
	}
	err = c.update(ctx, []string{g.ID}, []string{"Partition=" + strings.Join(partitions, ",")})
	if err != nil && strings.Contains(err.Error(), staleError) {
		return nil // the next poll shows the gate's partitions
	}
	return err
}

// staleError is an error unrelated to the change: without accounting slurmctld reports the last error of its thread as
// the result of a change of partitions (_update_job in job_mgr.c of 24.11 and 26.05).
const staleError = "Resource temporarily unavailable"

// PartitionUp implements job.Slurm.
func (c *Client) PartitionUp(ctx context.Context, name string) (bool, error) {
	all, err := c.partitions(ctx)
	return slices.ContainsFunc(all, func(p text.Partition) bool {
		return p.Name == name && p.State == "UP" && !p.WholeNodes
	}), err
}

// partitionShape matches partition names that can't become a second setting.
var partitionShape = regexp.MustCompile(`^[A-Za-z0-9_.+-]+$`)

func checkPartitions(names []string) error {
	for _, name := range names {
		if !partitionShape.MatchString(name) {
			return fmt.Errorf("gate: partition %q: %w", name, job.ErrRefused)
		}
	}
	return nil
}

// OpenGate cancels the gate if it still exists. scancel checks the name, too: a slurmctld that was killed may have
// forgotten the gate and given its number to another job.
func (c *Client) OpenGate(ctx context.Context, id string) error {
	if err := checkRefs("gate", id); err != nil {
		return err
	}
	_, err := c.ask(ctx, "scancel", "--name="+job.GateName, id)
	if errors.Is(err, job.ErrNoJob) {
		return nil
	}
	return err
}

// seconds rounds up: a gate that opens a little late is better than a gate that can't be renewed in time.
func seconds(d time.Duration) int { return int((max(d, time.Second) + time.Second - 1) / time.Second) }
