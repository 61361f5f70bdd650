package slurmtest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// NodeName is the i-th node's name, from 0.
func NodeName(i int) string { return "n" + strconv.Itoa(i+1) }

// Partition is the cluster's only partition, unless Options.Extra has more.
const Partition = "gpu"

// shared are the indexes of the GPUs of node i that have shares.
func (o *Options) shared(i int) []string {
	var out []string
	for g := range o.Cards[i] {
		if !slices.Contains(o.Unshared, g) {
			out = append(out, strconv.Itoa(g))
		}
	}
	return out
}

// gres is node i's Gres: the types of its GPUs, and their shares.
func (o *Options) gres(i int) string {
	var out []string
	types := o.Cards[i]
	for k, typ := range types {
		if !slices.Contains(types[:k], typ) {
			others := slices.DeleteFunc(slices.Clone(types), func(t string) bool { return t != typ })
			out = append(out, fmt.Sprintf("gpu:%s:%d", typ, len(others)))
		}
	}
	if o.Sharing != "none" {
		out = append(out, fmt.Sprintf("%s:%d", o.Sharing, 100*len(o.shared(i))))
	}
	return strings.Join(out, ",")
}

// configure writes slurm.conf, gres.conf, cgroup.conf and the job_submit script.
func (c *Cluster) configure() error {
	files := map[string]string{
		"slurm.conf": c.slurmConf(),
		"gres.conf":  c.gresConf(),
		// Releases that would use cgroups by themselves are configured not to; older ones
		// don't know this value, and need none without a cgroup plugin.
		"cgroup.conf": "CgroupPlugin=disabled\n",
	}
	if c.Release < "23.11" {
		files["cgroup.conf"] = "CgroupAutomount=no\n"
	}
	if c.Options.Lua != "" {
		text, err := os.ReadFile(c.Options.Lua)
		if err != nil {
			return err
		}
		files["job_submit.lua"] = strings.NewReplacer(
			`"/run/slurmbridge/gate"`, strconv.Quote(c.GateFile),
			`"/run/slurmbridge/wake"`, strconv.Quote(c.WakeFile),
		).Replace(string(text))
	}
	for name, text := range c.Options.Files {
		files[name] = strings.ReplaceAll(text, "DIR", c.Dir)
	}
	for name, text := range files {
		if err := os.WriteFile(c.Path(name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	for i := range c.Options.Nodes {
		if err := os.MkdirAll(c.Path("spool", NodeName(i)), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// backupAfterS is how long the first slurmctld must be gone before the second takes over.
const backupAfterS = "10"

func (c *Cluster) backupHost() string { return c.host + "b" }

// name is the cluster's.
func (c *Cluster) name() string { return filepath.Base(c.Dir) }

func (c *Cluster) slurmConf() string {
	o, d := &c.Options, c.Dir
	var b strings.Builder
	set := func(key, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%s=%s\n", key, value)
		}
	}
	set("ClusterName", c.name())
	set("SlurmctldHost", c.host+"(127.0.0.1)")
	if o.Backup {
		set("SlurmctldHost", c.backupHost()+"(127.0.0.2)")
		set("CommunicationParameters", "NoCtldInAddrAny") // one port, two addresses
		set("SlurmctldTimeout", backupAfterS)
	}
	set("SlurmctldPort", c.port)
	set("SlurmUser", "slurm")
	if o.AuthSlurm {
		set("AuthType", "auth/slurm")
		set("CredType", "cred/slurm")
	} else {
		set("AuthType", "auth/munge")
		set("AuthInfo", "socket="+c.MungeSocket)
		set("CredType", "cred/munge")
	}
	set("StateSaveLocation", d+"/state")
	set("SlurmdSpoolDir", d+"/spool/%n")
	set("SlurmctldPidFile", d+"/run/slurmctld.pid")
	set("SlurmdPidFile", d+"/spool/%n.pid")
	set("SlurmctldLogFile", d+"/log/slurmctld.log")
	set("SlurmdLogFile", d+"/log/slurmd-%n.log")
	set("ProctrackType", "proctrack/linuxproc")
	set("TaskPlugin", "task/none")
	set("SelectType", "select/cons_tres")
	set("SelectTypeParameters", "CR_Core_Memory")
	set("SlurmdParameters", "config_overrides") // nodes larger than this machine
	set("MpiDefault", "none")
	set("ReturnToService", "2")
	set("DefMemPerCPU", "100")
	set("MaxJobCount", "20000")
	set("MaxArraySize", "10001")
	set("KillWait", "2")
	set("SlurmdTimeout", "30")
	// of a busy machine: slurmctld requeues what it can't confirm in time, and commands give up
	set("MessageTimeout", "60")
	types := "gpu"
	if o.Sharing != "none" {
		types += "," + o.Sharing
	}
	set("GresTypes", types)
	set("Prolog", o.Prolog)
	set("Epilog", o.Epilog)
	set("TaskProlog", o.TaskProlog)
	set("EpilogSlurmctld", o.EpilogSlurmctld)
	set("SchedulerParameters", o.Scheduler)
	set("JobSubmitPlugins", o.JobSubmit)
	if o.Accounting {
		b.WriteString(c.accountingConf())
	}
	for _, line := range o.Extra {
		b.WriteString(line + "\n")
	}
	var names []string
	for i := range o.Nodes {
		if !slices.Contains(o.Apart, i) {
			names = append(names, NodeName(i))
		}
		cores := ""
		if o.Threads > 1 {
			cores = fmt.Sprintf("Sockets=1 CoresPerSocket=%d ThreadsPerCore=%d ", o.CPUs/o.Threads, o.Threads)
		}
		fmt.Fprintf(&b, "NodeName=%s NodeHostname=%s NodeAddr=127.0.0.1 Port=%s CPUs=%d %sRealMemory=%d Gres=%s "+
			"State=UNKNOWN\n",
			NodeName(i), c.host, c.nodePorts[i], o.CPUs, cores, o.MemMiB, o.gres(i))
	}
	fmt.Fprintf(&b, "PartitionName=%s Nodes=%s Default=YES MaxTime=UNLIMITED State=UP\n", Partition,
		strings.Join(names, ","))
	return b.String()
}

func (c *Cluster) gresConf() string {
	o := &c.Options
	var b strings.Builder
	for i, types := range o.Cards {
		for k, typ := range types {
			file := "File=" + c.Path("dev", fmt.Sprint("nvidia", k))
			if isInstance(typ) {
				file = fmt.Sprintf("MultipleFiles=%s,%s%d", c.Path("dev/nvidia0"), c.Path("dev/nvidia-caps/nvidia-cap"), k)
			}
			fmt.Fprintf(&b, "NodeName=%s Name=gpu Type=%s %s\n", NodeName(i), typ, file)
		}
		if o.Sharing == "none" {
			continue
		}
		shared, more := o.shared(i), ""
		if !o.instances() {
			more = " File=" + c.Path("dev/nvidia") + "[" + strings.Join(shared, ",") + "]"
		}
		if o.Sharing == "mps" {
			more += " Flags=all_sharing" // without it a node shares one of its GPUs at a time
		}
		fmt.Fprintf(&b, "NodeName=%s Name=%s Count=%d%s\n", NodeName(i), o.Sharing, 100*len(shared), more)
	}
	return b.String()
}
