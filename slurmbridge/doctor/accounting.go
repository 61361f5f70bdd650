package doctor

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// Limit is one of accounting's limits on what several jobs have together.
type Limit struct {
	// Of is what it is set on, as sacctmgr modify takes it: "qos normal",
	// "account lab", "user ann where account=lab".
	Of   string
	Name string // the option, e.g. "MaxTRESPerUser"
	TRES string // e.g. "cpu=8,gres/gpu=1"; of limits that are no TRES' their number
}

// accounts reports whether accounting has a database.
func accounts(conf map[string]string) bool {
	return strings.HasSuffix(conf["AccountingStorageType"], "slurmdbd")
}

// enforced reports whether every job needs an account.
func enforced(conf map[string]string) bool {
	is := conf["AccountingStorageEnforce"]
	return slices.ContainsFunc([]string{"associations", "limits", "qos", "safe", "wckeys", "all"}, func(w string) bool { return text.HasOption(is, w) })
}

// askAccounting adds what the database knows of the bridge's user and of limits.
func askAccounting(ctx context.Context, ask Ask, f *Facts) {
	if !accounts(f.Config) {
		return
	}
	show := func(args ...string) ([][]string, bool) {
		out, err := ask(ctx, "sacctmgr", append([]string{"-n", "-P", "show"}, args...)...)
		var rows [][]string
		for line := range strings.Lines(out) {
			rows = append(rows, strings.Split(strings.TrimSuffix(line, "\n"), "|"))
		}
		return rows, err == nil
	}
	cluster := "cluster=" + f.Config["ClusterName"]
	if f.User != "" {
		if rows, ok := show("assoc", cluster, "user="+f.User, "format=Account"); ok {
			has := len(rows) > 0
			f.Account = &has
		}
	}
	if rows, ok := show("qos", "format=Name,GrpTRES,MaxTRESPA,MaxTRESPU,GrpJobsAccrue,MaxJobsAccruePA,MaxJobsAccruePU"); ok {
		f.Limits = append(f.Limits, qosLimits(rows)...)
	}
	if rows, ok := show("assoc", cluster, "format=Account,User,GrpTRES,GrpJobsAccrue,MaxJobsAccrue"); ok {
		f.Limits = append(f.Limits, assocLimits(rows)...)
	}
}

// limitsOf are a row's limits of these names; empty ones are none.
func limitsOf(of string, row []string, names ...string) (out []Limit) {
	for i, name := range names {
		if i < len(row) && row[i] != "" {
			out = append(out, Limit{of, name, row[i]})
		}
	}
	return out
}

// qosLimits reads rows of a QOS' name and limits.
func qosLimits(rows [][]string) []Limit {
	var out []Limit
	for _, r := range rows {
		out = append(out, limitsOf("qos "+r[0], r[1:], "GrpTRES", "MaxTRESPerAccount", "MaxTRESPerUser", "GrpJobsAccrue", "MaxJobsAccruePerAccount", "MaxJobsAccruePerUser")...)
	}
	return out
}

// assocLimits reads rows of an account, a user ("" = the account's own) and limits.
func assocLimits(rows [][]string) []Limit {
	var out []Limit
	for _, r := range rows {
		if len(r) < 2 {
			continue
		}
		of := "account " + r[0]
		if r[1] != "" {
			of = "user " + r[1] + " where account=" + r[0]
		}
		out = append(out, limitsOf(of, r[2:], "GrpTRES", "GrpJobsAccrue", "MaxJobsAccrue")...)
	}
	return out
}

// tresValue reads one of a list of TRES ("gres/gpu=2", in TRESBillingWeights
// "GRES/gpu=200"). A type ("gres/gpu:a100") is a name of its own.
func tresValue(tres, name string) (value float64, there bool) {
	v, there := text.Option(tres, name)
	f, err := strconv.ParseFloat(strings.TrimRight(v, "KMGTP"), 64)
	return f, there && err == nil
}

// gateAccount: the gate is a job, and where limits are enforced a job needs an account.
func (e *exam) gateAccount() {
	if e.User == "" || !enforced(e.Config) || e.Account != nil && *e.Account {
		return
	}
	s, what := Warning, "AccountingStorageEnforce requires an account of every submitter"
	if e.Account != nil {
		s, what = Error, e.User+" has no account, and AccountingStorageEnforce requires one of every submitter"
	}
	e.add("gate-account", s, what, "the gate is a job of "+e.User+"'s: without an account it is refused, and then nothing is grouped",
		Fix{Lines: []string{"sacctmgr show assoc user=" + e.User, "sacctmgr add user " + e.User + " account=ACCOUNT"}})
}

// accounting: a job with shares of a GPU has no GPU in accounting. Tried on 22.05.8: AllocTRES has
// gres/mps=50 and no gres/gpu, MaxTRESPerUser=gres/gpu=1 let six jobs run on two GPUs, and only
// shares are billed.
func (e *exam) accounting() {
	if !accounts(e.Config) {
		return
	}
	shares := "gres/" + e.sharing
	if tracked := e.Config["AccountingStorageTRES"]; !text.HasOption(tracked, shares) {
		var keep []string
		for w := range strings.SplitSeq(tracked, ",") {
			if strings.Contains(w, "/") && w != "fs/disk" {
				keep = append(keep, w)
			}
		}
		e.add("shares-accounted", Note, "AccountingStorageTRES has no "+shares,
			"what jobs that share a GPU have of it is in no account, no bill and no limit; TRESBillingWeights and sacctmgr don't take "+shares+" before this",
			e.conf("AccountingStorageTRES="+strings.Join(append(keep, shares), ",")), Fix{Lines: []string{"systemctl restart slurmctld"}})
		return
	}
	var of, lines []string
	for _, l := range e.Limits {
		n, is := tresValue(l.TRES, "gres/gpu")
		if _, both := tresValue(l.TRES, shares); !is || both {
			continue
		}
		of = append(of, l.Of)
		lines = append(lines, fmt.Sprintf("sacctmgr modify %s set %s=%s=%g", l.Of, l.Name, shares, 100*n))
	}
	if len(of) > 0 {
		s := Note
		if text.HasOption(e.Config["AccountingStorageEnforce"], "limits") || text.HasOption(e.Config["AccountingStorageEnforce"], "safe") {
			s = Warning
		}
		const most = 10
		more := ""
		if n := len(of) - most; n > 0 {
			of, lines, more = of[:most], lines[:most], fmt.Sprintf(" and %d more", n)
		}
		e.add("shares-limits", s, "limits on gres/gpu and none on "+shares+": "+strings.Join(of, ", ")+more,
			"Slurm doesn't count a job that shares a GPU under gres/gpu: such a limit doesn't hold it. Shares and GPUs are counted apart; a job with shares alone on a GPU counts 100",
			Fix{Lines: lines})
	}
	for i := range e.Partitions {
		p := &e.Partitions[i]
		w, is := tresValue(p.Billing, "gres/gpu")
		if _, both := tresValue(p.Billing, shares); !is || both {
			continue
		}
		e.add("shares-billed", Note, "partition "+p.Name+" bills gres/gpu and not "+shares,
			"jobs that share a GPU are billed as if they had none; fair share counts the same. With this each pays for its share",
			e.conf(fmt.Sprintf("PartitionName=%s … TRESBillingWeights=%s,GRES/%s=%g", p.Name, p.Billing, e.sharing, w/100)))
	}
}
