package text

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Positions of the fields of a description that only Slurm writes, which '|' ends.
const (
	dArray = iota
	dTask
	dState
	dExitCode
	dRequeue
	numDescribed
)

var described = [numDescribed]string{"arrayjobid", "arraytaskid", "state", "exit_code", "requeue"}

// DescriptionFormat is what squeue -O takes for ParseDescriptions: the administrators'
// comment is the last field, and the nonce ends it.
func DescriptionFormat(nonce string) string {
	return strings.Join(described[:], ":|,") + ":" + nonce + ",admin_comment:" + nonce
}

// ParseDescriptions reads squeue's rows in DescriptionFormat, by job or array task.
func ParseDescriptions(out []byte, nonce string) (map[string]job.Description, error) {
	jobs := map[string]job.Description{}
	mark := []byte(nonce)
	for len(out) > 0 {
		head, rest, _ := bytes.Cut(out, mark)
		comment, rest, ok := bytes.Cut(rest, mark)
		if !ok || len(rest) > 0 && rest[0] != '\n' {
			return nil, fmt.Errorf("%w: a description is cut short", ErrRow)
		}
		out = rest[min(1, len(rest)):]
		f := bytes.Split(head, []byte{'|'})
		if len(f) != numDescribed {
			return nil, fmt.Errorf("%w: a description begins with %.80q", ErrRow, head)
		}
		ref := string(f[dArray])
		if task := string(f[dTask]); !IsNone(task) {
			ref += "_" + task
		}
		if !ValidRef(ref) {
			continue // several tasks in one row
		}
		d := job.Description{State: string(f[dState]), ExitCode: exitCode(f[dExitCode]), Requeue: string(f[dRequeue]) == "1"}
		if s := unquoted(string(comment)); !IsNone(s) {
			d.AdminComment = s[:min(len(s), maxComment)]
		}
		jobs[ref] = d
	}
	return jobs, nil
}

// unquoted is a text without the quotes around it that scontrol keeps where it reads its
// commands from standard input.
func unquoted(s string) string {
	if inner, ok := strings.CutPrefix(s, `"`); ok {
		if inner, ok = strings.CutSuffix(inner, `"`); ok && !strings.Contains(inner, `"`) {
			return inner
		}
	}
	return s
}

// exitCode reads how a job ended: the status that wait(2) gives ("768"), or exit code
// and signal ("3:0"). A signal counts as 128 more, as in a shell.
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
