package slurm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// described are describe's fields that only Slurm writes, separated by '|'; the
// administrators' comment follows, ended by the nonce.
var described = []string{"arraytaskid", "state", "exit_code", "requeue"}

// Describe asks after jobs by name, ended ones too as long as slurmctld remembers
// them (MinJobAge, 300 s by default). One that it has forgotten isn't in the answer.
func (c *Client) Describe(ctx context.Context, refs []string) (map[string]job.Description, error) {
	for _, ref := range refs {
		if !validRef(ref) {
			return nil, fmt.Errorf("describe: %q is no job: %w", ref, job.ErrNoJob)
		}
	}
	if len(refs) == 0 {
		return nil, nil
	}
	nonce := newNonce()
	format := "arrayjobid:|," + strings.Join(described, ":|,") + ":" + nonce + ",admin_comment:" + nonce
	out, _, err := c.run(ctx, command{
		name: "squeue", prog: "squeue",
		args: []string{"--noheader", "--all", "--array", "--local", "--states=all", "--jobs=" + strings.Join(refs, ",")},
		env:  []string{"SQUEUE_FORMAT2=" + format},
	})
	if errors.Is(err, job.ErrNoJob) {
		return nil, nil // it has forgotten all of them
	}
	if err != nil {
		return nil, err
	}
	return parseDescriptions(out, nonce)
}

func parseDescriptions(out []byte, nonce string) (map[string]job.Description, error) {
	jobs := map[string]job.Description{}
	mark := []byte(nonce)
	for len(out) > 0 {
		head, rest, ok := bytes.Cut(out, mark)
		if !ok {
			return nil, fmt.Errorf("%w: a description has no end", errRow)
		}
		comment, rest, ok := bytes.Cut(rest, mark)
		if !ok || len(rest) > 0 && rest[0] != '\n' {
			return nil, fmt.Errorf("%w: a description is cut short", errRow)
		}
		out = rest[min(1, len(rest)):]
		f := bytes.Split(head, []byte{'|'})
		if len(f) != 1+len(described) {
			return nil, fmt.Errorf("%w: a description begins with %.80q", errRow, head)
		}
		ref := string(f[0])
		if !isNone(string(f[1])) {
			ref += "_" + string(f[1])
		}
		if !validRef(ref) {
			continue // several tasks in one row
		}
		d := job.Description{State: string(f[2]), Requeue: string(f[4]) == "1"}
		d.ExitCode = exitCode(f[3])
		if s := string(comment); !isNone(s) {
			d.AdminComment = s[:min(len(s), maxComment)]
		}
		jobs[ref] = d
	}
	return jobs, nil
}

// exitCode reads what squeue prints of how a job ended: the status as wait(2)
// gives it ("768"), or exit code and signal ("3:0"). A signal counts as 128 more,
// as a shell says it.
func exitCode(b []byte) int {
	code, sig, pair := bytes.Cut(b, []byte{':'})
	n, _ := leading(code)
	s, _ := leading(sig)
	if !pair {
		n, s = n>>8, n&0x7f
	}
	if s > 0 {
		return int(128 + s&0x7f)
	}
	return int(n & 0xff)
}

// Requeue lets a batch job run once more, from its beginning. It is pending again
// for some seconds before it may start.
func (c *Client) Requeue(ctx context.Context, ref string) error {
	if !validRef(ref) {
		return fmt.Errorf("requeue: %q is no job: %w", ref, job.ErrNoJob)
	}
	_, _, err := c.run(ctx, command{name: "scontrol requeue", prog: "scontrol", args: []string{"requeue", ref}})
	return err
}
