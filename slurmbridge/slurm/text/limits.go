package text

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// The columns of sacctmgr that ParseGPULimits reads, for format=.
const (
	AssocLimits = "Account,User,ParentName,GrpTRES,GrpTRESMins,GrpTRESRunMins"
	QOSLimits   = "Name,GrpTRES,MaxTRESPA,MaxTRESPU,GrpTRESMins,GrpTRESRunMins"
)

// QOSPreempts are the columns of sacctmgr that ParsePreemptions reads.
const QOSPreempts = "Name,Preempt"

// ParsePreemptions reads `sacctmgr -n -P show qos format=QOSPreempts`. It returns the QOSes that each QOS preempts.
func ParsePreemptions(qos string) map[string][]string {
	out := map[string][]string{}
	for line := range strings.Lines(qos) {
		name, list, ok := strings.Cut(strings.TrimSpace(line), "|")
		if !ok || name == "" {
			continue
		}
		out[name] = nil
		if list != "" {
			out[name] = strings.Split(list, ",")
		}
	}
	return out
}

// TRESValue returns the value of a name in a TRES list, e.g. of gres/gpu in "gres/gpu=2" or in the billing weights
// "GRES/gpu=200". With a type ("gres/gpu:a100") it is another name.
func TRESValue(list, name string) (value float64, there bool) {
	v, there := Option(list, name)
	f, err := strconv.ParseFloat(strings.TrimRight(v, "KMGTP"), 64)
	return f, there && err == nil
}

// gpus returns the smallest limit on GPUs, of a type or of all types, in a TRES list.
func gpus(list string) (most int, there bool) {
	most = math.MaxInt
	for w := range strings.SplitSeq(list, ",") {
		name, _, _ := strings.Cut(w, "=")
		if name != "gres/gpu" && !strings.HasPrefix(name, "gres/gpu:") {
			continue
		}
		if n, ok := TRESValue(w, name); ok && n >= 0 {
			most = min(most, int(min(n, maxCount)))
			there = true
		}
	}
	return most, there
}

// ParseGPULimits reads the limits on GPUs from `sacctmgr -n -P show assoc format=AssocLimits` and `show qos
// format=QOSLimits`. The limits of a partition's QOS also count the partition's jobs. A user's limit in one partition
// is taken for a limit on all jobs of the user in the account.
func ParseGPULimits(assocs, qos string, partitions []Partition) []job.GPULimit {
	var out []job.GPULimit
	add := func(l job.GPULimit, name, of, list string) {
		var limited bool
		if l.Most, limited = gpus(list); limited {
			l.Of = name + " of " + of
			l.Uncounted = strings.HasSuffix(name, "Mins")
			out = append(out, l)
		}
	}
	rows := func(s string, each func(f []string)) {
		for line := range strings.Lines(s) {
			if f := strings.Split(strings.TrimSuffix(line, "\n"), "|"); len(f) == 6 {
				each(f)
			}
		}
	}
	children := map[string][]string{}
	rows(assocs, func(f []string) {
		if f[1] == "" {
			children[f[2]] = append(children[f[2]], f[0])
		}
	})
	rows(assocs, func(f []string) {
		l := job.GPULimit{User: f[1], Accounts: []string{f[0]}}
		of := "account " + f[0]
		if f[1] != "" {
			of = "user " + f[1] + " in " + of
		} else {
			for i := 0; i < len(l.Accounts); i++ { // the account's children, and their children
				for _, a := range children[l.Accounts[i]] {
					if !slices.Contains(l.Accounts, a) {
						l.Accounts = append(l.Accounts, a)
					}
				}
			}
		}
		for i, name := range []string{"GrpTRES", "GrpTRESMins", "GrpTRESRunMins"} {
			add(l, name, of, f[3+i])
		}
	})
	rows(qos, func(f []string) {
		l := job.GPULimit{QOS: f[0]}
		of := "QOS " + f[0]
		for i := range partitions {
			if cmp.Or(partitions[i].QOS, "N/A") == f[0] {
				l.Partitions = append(l.Partitions, partitions[i].Name)
			}
		}
		each := l
		each.EachAccount = true
		add(l, "GrpTRES", of, f[1])
		add(each, "MaxTRESPerAccount", of, f[2])
		each.EachAccount = false
		each.EachUser = true
		add(each, "MaxTRESPerUser", of, f[3])
		add(l, "GrpTRESMins", of, f[4])
		add(l, "GrpTRESRunMins", of, f[5])
	})
	return out
}
