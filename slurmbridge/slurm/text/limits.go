package text

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// The columns of sacctmgr's that ParseGPULimits reads, as its format takes them.
const (
	AssocLimits = "Account,User,ParentName,GrpTRES,GrpTRESMins,GrpTRESRunMins"
	QOSLimits   = "Name,GrpTRES,MaxTRESPA,MaxTRESPU,GrpTRESMins,GrpTRESRunMins"
)

// QOSPreempts are the columns of sacctmgr's that ParsePreemptions reads.
const QOSPreempts = "Name,Preempt"

// ParsePreemptions reads which QOSes each preempts, of `sacctmgr -n -P show qos format=QOSPreempts`.
func ParsePreemptions(qos string) map[string][]string {
	out := map[string][]string{}
	for line := range strings.Lines(qos) {
		name, list, there := strings.Cut(strings.TrimSpace(line), "|")
		if !there || name == "" {
			continue
		}
		out[name] = nil
		if list != "" {
			out[name] = strings.Split(list, ",")
		}
	}
	return out
}

// TRESValue reads one of a list of TRES ("gres/gpu=2", in TRESBillingWeights "GRES/gpu=200"). A type
// ("gres/gpu:a100") is a name of its own.
func TRESValue(list, name string) (value float64, there bool) {
	v, there := Option(list, name)
	f, err := strconv.ParseFloat(strings.TrimRight(v, "KMGTP"), 64)
	return f, there && err == nil
}

// gpus is the smallest limit on GPUs, of a type or of any, in a list of TRES.
func gpus(list string) (most int, there bool) {
	most = math.MaxInt
	for w := range strings.SplitSeq(list, ",") {
		name, _, _ := strings.Cut(w, "=")
		if name != "gres/gpu" && !strings.HasPrefix(name, "gres/gpu:") {
			continue
		}
		if n, ok := TRESValue(w, name); ok && n >= 0 {
			most, there = min(most, int(min(n, maxCount))), true
		}
	}
	return most, there
}

// ParseGPULimits reads the limits on GPUs of `sacctmgr -n -P show assoc format=AssocLimits` and `show qos
// format=QOSLimits`. A limit of a partition's QOS counts the jobs of the partition, too. The limit of a user in one
// partition counts as one on all of the user's jobs for the account.
func ParseGPULimits(assocs, qos string, partitions []Partition) []job.GPULimit {
	var out []job.GPULimit
	add := func(l job.GPULimit, name, of, list string) {
		var is bool
		if l.Most, is = gpus(list); is {
			l.Of, l.Uncounted = name+" of "+of, strings.HasSuffix(name, "Mins")
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
		l, of := job.GPULimit{User: f[1], Accounts: []string{f[0]}}, "account "+f[0]
		if f[1] != "" {
			of = "user " + f[1] + " in " + of
		} else {
			for i := 0; i < len(l.Accounts); i++ { // its accounts, and theirs
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
		l, of := job.GPULimit{QOS: f[0]}, "QOS "+f[0]
		for i := range partitions {
			if cmp.Or(partitions[i].QOS, "N/A") == f[0] {
				l.Partitions = append(l.Partitions, partitions[i].Name)
			}
		}
		each := l
		each.EachAccount = true
		add(l, "GrpTRES", of, f[1])
		add(each, "MaxTRESPerAccount", of, f[2])
		each.EachAccount, each.EachUser = false, true
		add(each, "MaxTRESPerUser", of, f[3])
		add(l, "GrpTRESMins", of, f[4])
		add(l, "GrpTRESRunMins", of, f[5])
	})
	return out
}
