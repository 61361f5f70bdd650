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

// The gate is a job that never runs. It becomes eligible when the lease ends and has a deadline so soon after that its
// time limit doesn't fit before it: the first scheduling cycle that looks at it ends it as DEADLINE, and jobs that
// depend on after:GATE are free. The bridge need not be there for that.
//
// The cycles that look at it are backfill's (bf_interval, 30 s by default, if anything changed since the last) and the
// periodic full one (sched_interval, 60 s by default); the quick look after each submission is not. So jobs are free
// between 0 and 60 s after the lease's end, less where the site sets less.
//
// A cycle comes to a job's deadline after these (job_scheduler.c, backfill.c of 22.05): it isn't held, its begin time
// has come, its partition is up or draining and lets it in, no job before it in its partition could not start, and the
// cycle hasn't reached a bound of its own (bf_max_job_test, partition_job_depth, …). Hence the gate is in every
// partition where a job that it holds could start, and first in each. From 24.05 on slurmctld also ends any pending job
// that can't meet its deadline once a minute in any case (purge_old_job).
const (
	// gateSlack is how long after the lease the deadline is: less than the limit, or the
	// gate could run, and hardly less, or purge_old_job would open it before the lease's
	// end. scontrol may read the clock in another second for each of the two times.
	gateSlack = job.GateLimit - 2*time.Second
	// gateTries is how often a gate is tightened before it is given up.
	gateTries = 3
)

// CreateGate submits the gate job. From 23.11 or so sbatch refuses a deadline that the job can't meet (scontrol
// doesn't), so it is submitted with one that it can, and tightened. A gate that can't be tightened is cancelled: it
// would run. account is the one that it is in where Slurm refuses the user's default account, else "".
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
	id, _, _ = strings.Cut(strings.TrimSpace(string(out)), ";") // ";cluster" may follow
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

// federated is this cluster's name where it is in a federation, else "". Without it a job is on all of the federation's
// clusters, where other daemons would take the gate for their own cluster's.
func (c *Client) federated(ctx context.Context) string {
	out, err := c.ask(ctx, "scontrol", "show", "federation")
	if err != nil {
		return ""
	}
	return text.FederatedSelf(out)
}

// mostAccounts bounds the accounts that are tried for a gate.
const mostAccounts = 8

// accounts are the accounts in which the bridge's user may submit jobs, as Slurm's database says; nil = not known.
func (c *Client) accounts(ctx context.Context) []string {
	self, err := user.Current()
	if err != nil {
		return nil
	}
	out, err := c.ask(ctx, "sacctmgr", "-n", "-P", "show", "assoc", "user="+self.Username, "format=account")
	all := slices.Compact(slices.Sorted(strings.FieldsSeq(string(out))))
	all = slices.DeleteFunc(all, func(a string) bool { return !plainName.MatchString(a) })
	if err != nil {
		return nil // the refusal says what is wrong
	}
	return all[:min(len(all), mostAccounts)]
}

// plainName is a name that is an argument as it stands.
var plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.@-]*$`)

// RenewGate makes the lease end the given time from now.
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

// MendGate releases the gate if it is held, puts it into the given partitions and gives it the highest priority. Slurm
// drops partitions that are draining or inactive from the list without a word, so the gate may be in fewer.
func (c *Client) MendGate(ctx context.Context, g job.GateState, partitions []string) error {
	if err := errors.Join(checkRefs("gate", g.ID), checkPartitions(partitions)); err != nil {
		return err
	}
	if g.Priority == 0 { // a priority doesn't release a job that an administrator holds
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

// Without accounting slurmctld reports the last error that its thread met as the error of a change of partitions
// (_update_job in job_mgr.c of 24.11 and 26.05); it says nothing about the change.
const staleError = "Resource temporarily unavailable"

// PartitionUp implements job.Slurm.
func (c *Client) PartitionUp(ctx context.Context, name string) (bool, error) {
	all, err := c.partitions(ctx)
	takes := func(p text.Partition) bool { return p.Name == name && p.State == "UP" && !p.WholeNodes }
	return slices.ContainsFunc(all, takes), err
}

// partitionShape is a partition's name: none could be taken for a second setting.
var partitionShape = regexp.MustCompile(`^[A-Za-z0-9_.+-]+$`)

func checkPartitions(names []string) error {
	for _, name := range names {
		if !partitionShape.MatchString(name) {
			return fmt.Errorf("gate: partition %q: %w", name, job.ErrRefused)
		}
	}
	return nil
}

// OpenGate cancels the gate, if it is still there. A slurmctld that was killed may have
// forgotten it and given its number to another job, which stays.
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

// seconds rounds up: a gate that opens a little late is better than one that can't be renewed in time.
func seconds(d time.Duration) int { return int((max(d, time.Second) + time.Second - 1) / time.Second) }
