// Package adopt says which unchanged jobs of one whole GPU may share, by the site's rules. It is pure. The job_submit
// script applies the same rules to submissions, as Lines writes them for it.
//
// An adopted job stays the job of one GPU that its owner asked for, behind the gate, until it is put into a group.
package adopt

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// DefaultMaxSlowdown is the contract of an adopted job where its rule says nothing: its owner never asked to share.
const DefaultMaxSlowdown = 1.3

// Rule is one entry of the site's list. The first that matches a job decides. Empty lists match any job.
type Rule struct {
	Partitions   []string `mapstructure:"partition" is:"rule names"`
	Accounts     []string `mapstructure:"account" is:"rule names"`
	QOS          []string `mapstructure:"qos" is:"rule names"`
	Users        []string `mapstructure:"user" is:"rule names"`
	Reservations []string `mapstructure:"reservation" is:"rule names"`
	// Never: jobs that match are left alone.
	Never bool `mapstructure:"never"`
	// From is PerNode to leave out requests by --gpus and --gpus-per-task, which the script would turn into one per node.
	From string `mapstructure:"from" is:"one-gpu or per-node"`
	// MaxSlowdown is the contract, run time together ÷ alone. Grace is the part of its time alone by which a job may end
	// later than on plain Slurm, 0 = the site's.
	MaxSlowdown float64 `mapstructure:"max_slowdown" is:"1 to 100"`
	Grace       float64 `mapstructure:"grace" is:"0.01 to 100, or 0"`
}

// PerNode is what a rule says in From.
const PerNode = "per-node"

// Policy is all that the site says about adoption.
type Policy struct {
	Rules []Rule
	// Active: jobs are gated and grouped. Otherwise it is only worked out what would be done.
	Active bool
	// Percent of the users, by a hash of the user's number, have their jobs adopted.
	Percent int
	// Delay is how long a job may wait for a partner next to an idle GPU.
	Delay time.Duration
	// OutFile is where users and accounts opt out, "" = nowhere; OutUsers and OutAccounts are those it named.
	OutFile               string
	OutUsers, OutAccounts []string
	// UID returns the number of a user; false = there is none of this name.
	UID func(name string) (uint32, bool)
}

// criterion is one list of a rule, by its word in settings and for the script.
type criterion struct {
	word   string
	values []string
}

// criteria are the lists of a rule that aren't empty.
func (r *Rule) criteria() []criterion {
	all := []criterion{
		{"partition", r.Partitions},
		{"account", r.Accounts},
		{"qos", r.QOS},
		{"user", r.Users},
		{"reservation", r.Reservations},
	}
	return slices.DeleteFunc(all, func(c criterion) bool { return len(c.values) == 0 })
}

// String names the rule to people: "partition gpu, account lab".
func (r *Rule) String() string {
	var parts []string
	for _, c := range r.criteria() {
		parts = append(parts, c.word+" "+strings.Join(c.values, " or "))
	}
	text := cmp.Or(strings.Join(parts, ", "), "all jobs")
	if r.Never {
		return "never: " + text
	}
	return text
}

// matches reports whether the rule is about a job. A job of several partitions matches if all of them are listed; to be
// left alone, one of them is enough.
func (r *Rule) matches(j *job.Job) bool {
	has := func(list []string, value string) bool { return len(list) == 0 || slices.Contains(list, value) }
	listed := func(p string) bool { return slices.Contains(r.Partitions, p) }
	partitions := len(r.Partitions) == 0
	switch all := j.Partitions(); {
	case partitions:
	case r.Never:
		partitions = slices.ContainsFunc(all, listed)
	default:
		partitions = !slices.ContainsFunc(all, func(p string) bool { return !listed(p) })
	}
	return partitions && (len(r.Accounts) == 0 || inSmall(r.Accounts, j.Account)) &&
		(len(r.QOS) == 0 || inSmall(r.QOS, j.QOS)) && has(r.Users, j.User) && has(r.Reservations, j.Reservation)
}

// inSmall reports whether a list names an account or a QOS: Slurm keeps their names in small letters, however they are
// written (job_mgr.c, validate_job_create_req, which lowers a request's account after job_submit has seen it).
func inSmall(list []string, name string) bool {
	return slices.ContainsFunc(list, func(s string) bool { return strings.EqualFold(s, name) })
}

// Of returns the rule by which a job is adopted, nil = by none. It looks at the request, the owner and the rules;
// whether the job's application may share is the plan's to say.
func (p *Policy) Of(j *job.Job) *Rule {
	if p == nil || !Adoptable(j) || !p.Chosen(j.UID) || slices.Contains(p.OutUsers, j.User) ||
		inSmall(p.OutAccounts, j.Account) {
		return nil
	}
	for i := range p.Rules {
		if r := &p.Rules[i]; r.matches(j) {
			if r.Never {
				return nil
			}
			return r
		}
	}
	return nil
}

// Adoptable reports whether a job is one of one whole GPU of a node whose request scontrol can replace and give back.
func Adoptable(j *job.Job) bool {
	return j.Request.Kind == job.WholeGPU && j.Request.Count == 1 && j.Request.PerNode && j.NumNodes < 2 &&
		j.Exclusive == "" && j.HetID == 0
}

// ParseOptOut reads a file of names that have opted out: a name a line, accounts as account:NAME, # before a remark.
func ParseOptOut(text string) (users, accounts []string) {
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		for _, word := range strings.Fields(line) {
			if account, is := strings.CutPrefix(word, "account:"); is {
				accounts = append(accounts, account)
			} else {
				users = append(users, strings.TrimPrefix(word, "user:"))
			}
		}
	}
	return users, accounts
}

// Chosen reports whether a user is among the Percent.
func (p *Policy) Chosen(uid uint32) bool { return bucket(uid) < p.Percent }

// bucket hashes a user's number to 0 to 99, and neighbouring numbers to different buckets (99991 is prime).
// job_submit.lua has this function, too.
func bucket(uid uint32) int {
	h := uint64(5381)
	for _, c := range []byte(strconv.FormatUint(uint64(uid), 10)) {
		h = (h*65599 + uint64(c)) % (1 << 32)
	}
	return int(h % 99991 % 100)
}

// little is the part of a GPU's time, and of its memory, below which an application leaves something to share.
const little = 0.5

// Leaves reports whether an application leaves room for others on a card with so much memory, MiB; 0 = not known.
func Leaves(p *rlcore.Profile, cardMiB float64) bool {
	mean, peak := p.Mean(), p.Peak()
	return mean.GPU < little && (cardMiB == 0 || peak.MemMiB < little*cardMiB)
}

// MostLines is how many bytes the script reads of what Lines writes.
const MostLines = 48 << 10

// Lines are the policy as lines of the gate file, "" = nothing is adopted; a stopped rule adopts no job, and none is
// adopted in unbilled partitions. Users are numbers there; unknown ones are left out, and
// with them a rule that names no other. It returns an error where the script couldn't read all of them.
func (p *Policy) Lines(stopped func(*Rule) bool, unbilled []string) (string, error) {
	if p == nil || !p.Active || len(p.Rules) == 0 || p.Percent == 0 {
		return "", nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "percent=%d\n", p.Percent)
	if len(unbilled) > 0 {
		b.WriteString("adopt=never partition:" + strings.Join(unbilled, ",") + " end\n")
	}
	for i := range p.Rules {
		r := p.Rules[i]
		known := p.uids(r.Users)
		if len(r.Users) > 0 && len(known) == 0 {
			continue
		}
		r.Users = known
		line := "adopt=" // followed by some word: the script reads no empty values
		if r.Never || stopped(&p.Rules[i]) {
			line += "never "
		}
		if r.From == PerNode {
			line += "pernode "
		}
		for _, c := range r.criteria() {
			names := strings.Join(c.values, ",")
			if c.word == "account" || c.word == "qos" {
				names = strings.ToLower(names)
			}
			line += c.word + ":" + names + " "
		}
		b.WriteString(line + "end\n")
	}
	for _, uid := range p.uids(p.OutUsers) {
		b.WriteString("out=user:" + uid + "\n")
	}
	for _, a := range p.OutAccounts {
		b.WriteString("out=account:" + strings.ToLower(a) + "\n")
	}
	if b.Len() > MostLines {
		return "", fmt.Errorf("the rules and opt-outs take %d bytes, and job_submit.lua reads %d: nothing is adopted",
			b.Len(), MostLines)
	}
	return b.String(), nil
}

func (p *Policy) uids(users []string) []string {
	var out []string
	for _, name := range users {
		if uid, ok := p.UID(name); ok {
			out = append(out, strconv.FormatUint(uint64(uid), 10))
		}
	}
	return out
}
