package appid

import (
	"fmt"
	"math"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

func of(script string) App { return Identify(&Evidence{Script: []byte(script)}) }

func sizesOf(a App) string {
	var out []string
	for _, s := range a.Sizes {
		out = append(out, fmt.Sprintf("%s=%g", s.Name, s.Value))
	}
	return strings.Join(out, " ")
}

// alike fails unless two scripts are one application, apart if they are one or relatives of one size.
func alike(t *testing.T, one, two string) {
	t.Helper()
	a, b := of(one), of(two)
	if rel, why := Compare(&a, &b); rel != Same {
		t.Errorf("%q and %q are %s: %s", one, two, rel, why)
	}
}

func apart(t *testing.T, one, two string) Relation {
	t.Helper()
	a, b := of(one), of(two)
	rel, _ := Compare(&a, &b)
	if rel == Same || rel == Unknown || a.Family != "" && a.Family == b.Family && sizesOf(a) == sizesOf(b) {
		t.Errorf("%q and %q are %s: %s, %s, sizes %q", one, two, rel, a.Key, a.Family, sizesOf(a))
	}
	return rel
}

// Every word of the rules means what its rule says, as an option and as a variable.
func TestEachWordOfTheRules(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range rules {
		if r.why == "" {
			t.Errorf("no reason is given for %s", r.words)
		}
		for word := range strings.FieldsSeq(r.words) {
			if seen[word] {
				t.Errorf("%s stands there twice", word)
			}
			seen[word] = true
			scripts := []string{
				"./a.out --my_" + word + "=%s", "./a.out --my-" + strings.ReplaceAll(word, "_", "-") + " %s",
				"export MY_" + strings.ToUpper(word) + "=%s\n./a.out",
			}
			if r.at == inNames {
				scripts = []string{"cd /x/" + word + "_%s\n./a.out", "./a.out in_" + word + "%s.dat", "export DATA=d/" + word +
					"-%s\n./a.out"}
			}
			for _, script := range scripts {
				one, two := fmt.Sprintf(script, "128"), fmt.Sprintf(script, "4096")
				if r.means == where {
					one, two = fmt.Sprintf(script, "node128"), fmt.Sprintf(script, "node4096:128")
				}
				switch r.means {
				case masked, where:
					alike(t, one, two)
				case kind:
					if apart(t, one, two) == Relative {
						t.Errorf("%q and %q are relatives", one, two)
					}
				case size:
					must.Equal(t, apart(t, one, two), Relative, "%q and %q", one, two)
				case output:
					apart(t, one, two) // a number by itself is no place
				}
			}
			if r.means == output {
				alike(t, "./a.out --"+word+" run_1.log", "./a.out --"+word+" run_2.log")
			}
		}
	}
}

// What has one of the shapes doesn't count in an argument, a launcher's option, a folder's name, a variable.
func TestWhatHasAShapeDoesNotCount(t *testing.T) {
	for _, shape := range shapes {
		if !shape.is.MatchString(shape.alike[0]) || !shape.is.MatchString(shape.alike[1]) || shape.why == "" {
			t.Errorf("%s doesn't match %q", shape.is, shape.alike)
		}
		for _, script := range []string{
			"./a.out --with x.%s", "./a.out %s", "srun --export=A=%s ./a.out", "A=\"%s\"\n./a.out", "./a.out \"$HOME/x.%s\"",
		} {
			alike(t, fmt.Sprintf(script, shape.alike[0]), fmt.Sprintf(script, shape.alike[1]))
		}
		if !strings.ContainsAny(shape.alike[0], ":") {
			alike(t, "cd /x/"+shape.alike[0]+"/y\n./a.out", "cd /x/"+shape.alike[1]+"/y\n./a.out")
		}
	}
}

// What decides how much a job needs tells it from others: one that is taken for a small one shares by its figures.
func TestLookAlikesAreOthers(t *testing.T) {
	for _, pair := range [][2]string{
		{"echo 128 | ./solver", "echo 4096 | ./solver"},
		{"echo 128 > in\n./solver in", "echo 4096 > in\n./solver in"},
		{"echo start; python train.py --batch 8", "echo start; python train.py --batch 512"},
		{"date && python train.py", "date && python infer.py"},
		{"set -- 128\n./solver $1", "set -- 4096\n./solver $1"},
		{"set n = 128\n./solver -n $n", "set n = 4096\n./solver -n $n"},
		{"echo $(./solver 128)\n./a", "echo $(./solver 4096)\n./a"},
		{"echo $(date && ./solver 128)\n./a", "echo $(date && ./solver 4096)\n./a"},
		{"echo $(date; ./solver 128)\n./a", "echo $(date; ./solver 4096)\n./a"},
		{"echo ${N:=128}\n./solver $N", "echo ${N:=4096}\n./solver $N"},
		{"echo ${N=128}\n./solver $N", "echo ${N=4096}\n./solver $N"},
		{"echo $((N=128))\n./solver $N", "echo $((N=4096))\n./solver $N"},
		{"echo <(./solver 128)", "echo <(./solver 4096)"},
		{"n() { echo 128; }\n./solver $(n)", "n() { echo 4096; }\n./solver $(n)"},
		{"for i in 1 2; do echo 128; done | ./solver", "for i in 1 2; do echo 4096; done | ./solver"},
		{"exec >in\necho 128\nexec >&2\n./solver in", "exec >in\necho 4096\nexec >&2\n./solver in"},
		{"for n in 1 2; do echo 128; done >in\n./solver", "for n in 1 2; do echo 4096; done >in\n./solver"},
		{"cat small >POSCAR\ncat huge >CHGCAR\nvasp_std", "cat small >CHGCAR\ncat huge >POSCAR\nvasp_std"},
		{"./gen 8 >a\n./gen 9 >b\n./solver a", "./gen 8 >b\n./gen 9 >a\n./solver a"},
		{"printf -v N 128\n./solver $N", "printf -v N 4096\n./solver $N"},
		{"set -e -- 128\n./solver $1", "set -e -- 4096\n./solver $1"},
		{"set -x 128\n./solver $1", "set -x 4096\n./solver $1"},
		{"cat >x.c <<'#END'\n#define N 128\n#END\n./run x.c", "cat >x.c <<'#END'\n#define N 4096\n#END\n./run x.c"},
		{"cat >x.c <<!\n#define N 128\n!\n./run x.c", "cat >x.c <<!\n#define N 4096\n!\n./run x.c"},
		{"./run <<EOF\n EOF\n#define N 128\nEOF", "./run <<EOF\n EOF\n#define N 4096\nEOF"},
		{"./run <<EOF\nx > 128\nEOF", "./run <<EOF\nx > 4096\nEOF"},
		{"cat >x.c <<'EOF'\n#define N 128\nEOF\n./run x.c", "cat >x.c <<'EOF'\n#define N 4096\nEOF\n./run x.c"},
		{"cat >x.c <<A >y.c <<B\nA\n#define N 128\nB\n./run x.c", "cat >x.c <<A >y.c <<B\nA\n#define N 4096\nB\n./run x.c"},
		{"cat <<A - <<B\n1\nA\n# 128\nB", "cat <<A - <<B\n1\nA\n# 4096\nB"},
		{"./run <<1END\n# 128\n1END", "./run <<1END\n# 4096\n1END"},
		{"python - <<E\nif 1:\n    a()\n    b()\nE", "python - <<E\nif 1:\n    a()\nb()\nE"},
		{"python -c '\n#define N 128\n'", "python -c '\n#define N 4096\n'"},
		{"echo \"\n#define N 128\n\" >x.c\n./run x.c", "echo \"\n#define N 4096\n\" >x.c\n./run x.c"},
		{"./run 'a b'", "./run 'a  b'"},
		{"./run \"a b\"", "./run \"a\tb\""},
		{"gnuplot <<EOF\nset samples 128\nEOF", "gnuplot <<EOF\nset samples 4096\nEOF"},
		{"lmp -sf gpu < in.lj", "lmp -sf gpu < in.eam_big"},
		{"pw.x < si8.scf.in", "pw.x < si512.scf.in"},
		{"./solver <<< 128", "./solver <<< 4096"},
		{"srun bash -c 'export BATCH=8; python train.py'", "srun bash -c 'export BATCH=512; python train.py'"},
		{"singularity exec --nv resnet.sif bash -c 'python t.py'", "singularity exec --nv gpt3.sif bash -c 'python t.py'"},
		{"srun -n 1 bash -c './a 5'", "srun -n 8 bash -c './a 5'"},
		{"bash -c './solver $1' _ 128", "bash -c './solver $1' _ 4096"},
		{"bash -c 'cd small; ./solver'", "bash -c 'cd huge; ./solver'"},
		{"vllm bench --output-len 128", "vllm bench --output-len 8192"},
		{"./fft --log-n 18", "./fft --log-n 26"},
		{"python t.py --model_name_or_path meta-llama/Llama-2-7b-hf", "python t.py --model_name_or_path " +
			"meta-llama/Llama-2-70b-hf"},
		{"python t.py --model-name resnet18", "python t.py --model-name resnet152"},
		{"torchrun t.py --ckpt_dir llama-2-7b-chat/", "torchrun t.py --ckpt_dir llama-2-13b-chat/"},
		{"export MODEL_NAME=gpt2-124M\npython t.py", "export MODEL_NAME=gpt2-1558M\npython t.py"},
		{"cd water_24k\ngmx mdrun", "cd water_3072k\ngmx mdrun"},
		// A script that another shell reads is one of a folder, and its whole name counts.
		{"bash small/launch.sh", "bash huge/launch.sh"},
		{"srun sh -e small/launch.sh 5", "srun sh -e huge/launch.sh 5"},
		{"source small/launch.sh", "source huge/launch.sh"},
		{". small/launch.sh", ". huge/launch.sh"},
		{"Rscript small/fit.R", "Rscript huge/fit.R"},
		{"srun bash long_name_of_an_experiment_number_one.sh", "srun bash long_name_of_an_experiment_quite_another.sh"},
		{"python small/train.py", "python huge/train.py"},
		{"small/run", "huge/run"},
		// Parent folders, names, rates, tolerances: a number there may be the work.
		{"cd /s/water_24k/md\ngmx mdrun -deffnm md", "cd /s/water_3072k/md\ngmx mdrun -deffnm md"},
		{"cd systems/64molecules/prod && lmp -in in.lmp", "cd systems/8192molecules/prod && lmp -in in.lmp"},
		{"cd /s/64/md\n./a", "cd /s/4096/md\n./a"},
		{"cd run1\n./a", "cd run2\n./a"},
		{"cd case_001\n./a", "cd case_002\n./a"},
		{"mkdir -p out; cp in/64/x.gro .; gmx mdrun", "mkdir -p out; cp in/4096/x.gro .; gmx mdrun"},
		{"./a --dir data/64/x", "./a --dir data/4096/x"},
		{"PREFIX=water_24k\ngmx mdrun -deffnm $PREFIX", "PREFIX=water_3072k\ngmx mdrun -deffnm $PREFIX"},
		{"NAME=llama-7b\npython f.py --model $NAME", "NAME=llama-70b\npython f.py --model $NAME"},
		{"OUT=case/64\ncd $OUT && ./a", "OUT=case/4096\ncd $OUT && ./a"},
		{"python train.py --name resnet18", "python train.py --name resnet152"},
		{"python train.py --run-name resnet18", "python train.py --run-name resnet34"},
		{"python train.py --exp resnet18", "python train.py --exp resnet34"},
		{"python train.py -o out-resnet18", "python train.py -o out-resnet34"},
		{"python train.py --out_dir out/llama-7b --resume", "python train.py --out_dir out/llama-70b --resume"},
		{"python train.py --sample-rate 16000", "python train.py --sample-rate 48000"},
		{"python train.py --frame_rate=24", "python train.py --frame_rate=120"},
		{"./cg --tol 1e-3", "./cg --tol 1e-12"},
		{"./cg -eps 1e-3", "./cg -eps 1e-12"},
		{"./md --dt 0.01", "./md --dt 0.0001"},
		{"python train.py --checkpoint 100", "python train.py --checkpoint 90000"},
		{"python train.py --chunk 128", "python train.py --chunk 4096"},
		{"python train.py --repeat 1", "python train.py --repeat 500"},
		{"./a --seed_length 128", "./a --seed_length 4096"},
		{"./a --task 1", "./a --task 2"},
		{"./a /tmp/model_64", "./a /tmp/model_4096"},
		{"./a /tmp/64.dat", "./a /tmp/4096.dat"},
		{"./a /tmp/resnet-50/x.pt", "./a /tmp/resnet-152/x.pt"},
		{"./a $TMPDIR/model_64", "./a $TMPDIR/model_4096"},
		{"./a /tmp/$USER/64/x", "./a /tmp/$USER/4096/x"},
		{"./a /home/ann/tmp/64/x", "./a /home/ann/tmp/4096/x"},
		{"./a x_20260131_2048", "./a x_20260131_8192"},
		{"./wrf --start 2026-01-01 --end 2026-01-03", "./wrf --start 2026-01-01 --end 2026-12-31"},
		{"START=20260101\nEND=20260103T00:00\n./wrf", "START=20260101\nEND=20261231T00:00\n./wrf"},
		{"./a 'x[0:64]'", "./a 'x[0:4096]'"},
		{"./a input1.dat", "./a input2.dat"},
		{"python t.py --data deadbeef", "python t.py --data facade"},
		{"bash <<E\n./a 128\nE", "bash <<E\n./a 4096\nE"},
		{"cat >x.sh <<E\n./a 128\nE\nbash x.sh", "cat >x.sh <<E\n./a 4096\nE\nbash x.sh"},
		{"./a --host 128", "./a --host 4096"},
		{"N=${1:-128}\n./a $N", "N=${1:-4096}\n./a $N"},
		{"((N=128))\n./a $N", "((N=4096))\n./a $N"},
		{"A=(128 2)\n./a ${A[0]}", "A=(4096 2)\n./a ${A[0]}"},
		{"trap './a 128' EXIT", "trap './a 4096' EXIT"},
		{"source <(echo N=128)\n./a $N", "source <(echo N=4096)\n./a $N"},
		{"./a \"$(cat <<E\n128\nE\n)\"", "./a \"$(cat <<E\n4096\nE\n)\""},
		// More sizes than a family may have still tell jobs apart.
		{"./a" + strings.Repeat(" 7", 40) + " 128", "./a" + strings.Repeat(" 7", 40) + " 4096"},
	} {
		apart(t, pair[0], pair[1])
	}
}

// What changes nothing doesn't tell jobs apart.
func TestWhatChangesNothing(t *testing.T) {
	const script = "#!/bin/bash\n#SBATCH --time=10\n# my job\nmodule load lammps\n\nsrun  -n 1 lmp -in in.lj   -sf gpu\n"
	for _, pair := range [][2]string{
		{script, strings.Replace(script, "10", "99", 1)},
		{script, strings.Replace(script, "my job", "your job", 1)},
		{script, strings.ReplaceAll(script, "  ", " ")},
		{script, strings.Replace(script, "-n 1 lmp", "-n 1 \\\n  lmp", 1)},
		{script, strings.Replace(script, "module", "echo hello $SLURM_JOB_ID\nmodule", 1)},
		{script, strings.Replace(script, "gpu\n", "gpu # on the new card\n", 1)},
		{"./a 5", "echo \"run 1 -> $(date)\"\nset -euo pipefail\n./a 5\nsleep 5\nprintf '%s; done\\n' x"},
		{"./a 5", "hostname\nset +x\n./a 5\necho `date` $SLURM_JOB_ID ${SLURM_NODELIST:-none}"},
		{"k=4; ./a $((1<<k))", "k=4\n./a $(( 1 << k ))"},
		{"if [ -f x ]; then ./a; fi", "if [ -f x ]\nthen\n\t./a\nfi"},
		{"./a 5", "./a 5 >log6 2>&1"},
		{"./wrf --start 2026-01-01 --end 2026-01-03", "./wrf --start 2026-02-27 --end 2026-03-01"},
		{"./a 5", "./a 5 2>/dev/null"},
		{"./a 1000", "./a 1e3"},
		{"cd results-20260101\n./a 5", "cd results-20260102\n./a 5"},
		{"cd replica_3\n./a 5", "cd replica_4\n./a 5"},
		{"python t.py --seed 1 -o seed1.log", "python t.py --seed 2 -o seed2.log"},
		{"python t.py --log-interval 10 --verbose 2", "python t.py --log-interval 500 --verbose 3"},
		{"python t.py --job-id 104417", "python t.py --job-id 104418"},
		{"python t.py --seed=$SLURM_JOB_ID x/part_007.csv", "python t.py --seed=$SLURM_JOB_ID x/part_011.csv"},
		{"torchrun --master_port 29501 t.py", "torchrun --master_port 29777 t.py"},
		{"torchrun --rdzv_endpoint=node1:29501 t.py", "torchrun --rdzv_endpoint=node9:29601 t.py"},
		{"export MASTER_ADDR=node1 MASTER_PORT=29500\n./a", "export MASTER_ADDR=node2 MASTER_PORT=29600\n./a"},
		{"python t.py hydra.run.dir=outputs/2026-01-01/12-00-00", "python t.py hydra.run.dir=outputs/2026-02-11/08-30-12"},
		{"./a --out /tmp/ann.104417/x", "./a --out /tmp/ann.104418/x"},
		{"./a --local-directory /tmp/dask-1234", "./a --local-directory /tmp/dask-98"},
		{"./a --out /var/tmp/slurm.88/x", "./a --out /var/tmp/slurm.9/x"},
		{"cd /scratch/tmp/job_3\n./a /dev/shm/64", "cd /scratch/tmp/job_47\n./a /dev/shm/65"},
		{"./a $TMPDIR/dask-12", "./a $TMPDIR/dask-1345"},
		{"./a \"/tmp/$USER-12/x\"", "./a \"/tmp/$USER-345/x\""},
		{"export TMPDIR=/tmp/7\n./a", "export TMPDIR=/tmp/8123\n./a"},
	} {
		alike(t, pair[0], pair[1])
	}
}

// Each line is a family with the scripts that belong to it and their sizes; and scripts that don't.
func TestScriptsOfAFamily(t *testing.T) {
	for _, c := range []struct {
		script, sizes string
		same          map[string]string // relative → its sizes
		other         []string
	}{
		{
			"srun -n 1 ./lmp -in in.lj -var x 10 --steps=1000", "argument 3=10 --steps=1000",
			map[string]string{"srun -n 1 ./lmp -in in.lj -var x 20 --steps=2k": "argument 3=20 --steps=2000"},
			[]string{
				"srun -n 2 ./lmp -in in.lj -var x 10 --steps=1000", "srun -n 1 ./lmp -in in.eam -var x 10 --steps=1000",
				"srun -n 1 ./lmp -in in.lj -var y 10 --steps=1000", "srun -n 1 ./gmx -in in.lj -var x 10 --steps=1000",
				"srun -n 1 ./lmp -in in.lj -var x 10 --stops=1000",
			},
		},
		{
			"export N=4096\npython train.py --batch-size 64 --lr 0.1 --seed 1 -o run1.log --gpus 1 data/water_1536k.tpr",
			"N=4096 --batch-size=64 --lr=0.1 file water_#.tpr=1.536e+06",
			map[string]string{
				"export N=8Ki\npython train.py --batch-size 128 --lr 1e-3 --seed 7 -o run2.log --gpus 1 data/water_96k.tpr": "N=8192 " +
					"--batch-size=128 --lr=0.001 file water_#.tpr=96000",
			},
			[]string{
				"export N=4096\npython train.py --batch-size 64 --lr 0.1 --seed 1 -o run1.log --gpus 2 data/water_1536k.tpr",
				"export N=4096\npython train.py --batch-size 64 --lr 0.1 --seed 1 -o run1.log --gpus 1 data/ice_1536k.tpr",
			},
		},
		{
			"./cufft 64x64x64 -n1000 batch=2G", "argument 1=262144 -n=1000 batch=2e+09",
			map[string]string{"./cufft 128x64x64 -n500 batch=1G": "argument 1=524288 -n=500 batch=1e+09"},
			nil,
		},
		{
			"python t.py --model resnet50", "",
			map[string]string{"python  t.py --model resnet50 # again": ""},
			[]string{"python t.py --model resnet152"},
		},
		{"python t.py -c resnet50.yaml", "", nil, []string{"python t.py -c resnet152.yaml"}},
		{
			"a.out part_007.dat h2o.xyz x_20240131.nc", "",
			map[string]string{"a.out part_011.dat h2o.xyz x_20240201.nc": ""},
			[]string{"a.out part_007.dat h3o.xyz x_20240131.nc"},
		},
		{
			"cd /scratch/water_24k\n./a.out 5", "file water_#=24000 argument 1=5",
			map[string]string{"cd /scratch/water_3072k\n./a.out 6 >log6": "file water_#=3.072e+06 argument 1=6"},
			[]string{"cd /scratch/ice_24k\n./a.out 5", "cd /scratch/run22\n./a.out 5"},
		},
		{"./a.out 0 -5 -1 abc 12:30:00", "", nil, []string{"./a.out 1 -5 -1 abc 12:30:00"}},
	} {
		a := of(c.script)
		if a.Family == "" || sizesOf(a) != c.sizes {
			t.Errorf("%s: family %q, sizes %q, want %q", c.script, a.Family, sizesOf(a), c.sizes)
		}
		for script, sizes := range c.same {
			b := of(script)
			must.Equal(t, b.Family, a.Family, "%s: family", script)
			must.Equal(t, sizesOf(b), sizes, "%s: sizes", script)
		}
		for _, script := range c.other {
			if b := of(script); b.Family == a.Family {
				t.Errorf("%s is held to be of the family of %s", script, c.script)
			}
		}
	}
	for _, script := range []string{"", "# nothing", "cd /x\nmodule load a", "./a.out" +
		strings.Repeat(" 7", maxSizes+1)} {
		must.Equal(t, of(script).Family, "", "%.20q", script)
		must.Equal(t, of(script).Sizes, nil, "%.20q", script)
	}
}

// What was submitted from another folder is another application where the folder decides what it works on.
func TestFolderOfSubmission(t *testing.T) {
	for _, c := range []struct {
		script string
		counts bool
	}{
		{"#!/bin/sh\nexec gpusim run alexnet --mem-mib $(cat mem)", true},
		{"vasp_std", true},
		{"/opt/vasp/bin/vasp_std", true},
		{"lmp -in in.lj", true},
		{"gmx mdrun -deffnm md", true},
		{"gmx mdrun -s /data/topol.tpr -deffnm md", true},
		{"pw.x < si.in > /out/si.out", true},
		{"python train.py --data /data/x", true},
		{"python -m train --data /data/x", true},
		{"./a.out /data/x", true},
		{"bin/a.out /data/x", true},
		{"bash run_all.sh", true},
		{"cp in.lj /tmp/x && cd /tmp/x && lmp -in in.lj", true},
		{"cd sub && lmp -in in.lj", true},
		{"cd $SLURM_SUBMIT_DIR\nlmp -in in.lj", true},
		{"cd $(dirname $0)\nlmp -in in.lj", true},
		{"cd \"$WHO_KNOWS\"\nlmp -in in.lj", true},
		{"cd /data/x\ncd $SLURM_SUBMIT_DIR\nlmp -in in.lj", true},
		{"if true; then cd /data/x; fi\nlmp -in in.lj", true},
		{"python /code/train.py $1", true},
		{"DATA=in/x\npython /code/train.py --data $DATA", true},
		{"python /code/train.py --config conf.yaml", true},
		{"#!/usr/bin/env python3\nopen('/data/x')", true},
		{"cd /data/x\nlmp -in in.lj", false},
		{"cd /data/x && lmp -in in.lj && cd post && python plot.py", false},
		{"BASE=/data/x\ncd $BASE/y\nlmp -in in.lj", false},
		{"cd ~/x || exit 1\nlmp -in in.lj", false},
		{"lmp -in /data/in.lj", false},
		{"pw.x < /data/si.in", false},
		{"srun python /code/train.py --epochs 3 --name foo --output-dir out", false},
		{"DATA=/data/x\npython /code/train.py --data $DATA/y", false},
		{"module load cuda\nsource /opt/env/bin/activate\npython /code/train.py --data=/data/x", false},
	} {
		at := func(dir string) App { return Identify(&Evidence{Script: []byte(c.script), Dir: dir}) }
		a, b := at("/home/ann/small"), at("/home/ann/large")
		if rel, why := Compare(&a, &b); (rel == Others) != c.counts || (rel == Same) == c.counts {
			t.Errorf("%s: %s (%s), %q", c.script, rel, why, a.Why)
		}
	}
	// What doesn't count in any name doesn't count in a folder's; what lies in a folder that is made for one job may be
	// anything, and its job's name is a part of it.
	at := func(dir, name string) string {
		return Identify(&Evidence{Script: []byte("pw.x -in aiida.in"), Dir: dir, Name: name}).Key
	}
	must.Equal(t, at("/s/seed1", ""), at("/s/seed2", ""), "a seed in the folder")
	must.Equal(t, at("/s/2026-01-01/x", ""), at("/s/2026-01-02/x", ""), "a day in the folder")
	one, two := "/s/3f/9c/6679-7425/7c9e6679-7425-40de-944b-e07fc1f90ae7",
		"/s/3f/9c/6679-7425/0b1e7f3a-1f52-4f0a-9d3c-5a7b8c9d0e1f"
	if at(one, "relax") != at(two, "relax") || at(one, "relax") == at(two, "bands") ||
		at("/s/x", "relax") != at("/s/x", "bands") {
		t.Error("a job's name counts only where its folder is made for it alone")
	}
}

// One script with other arguments is another application, of the same family if only sizes differ.
func TestArguments(t *testing.T) {
	const script = "python train.py $1 $2"
	key := func(args string) App { return Identify(&Evidence{Script: []byte(script), Args: args}) }
	a := key("~0a1b2c3d 128 --epochs=90")
	if a.Name != "train" || !strings.HasPrefix(a.Key, "train-") || sizesOf(a) != "argument 2=128 --epochs=90" {
		t.Errorf("%+v", a)
	}
	if b := key("~0a1b2c3d 256 --epochs=90"); b.Key == a.Key || b.Family != a.Family {
		t.Errorf("another size: %+v", b)
	}
	// Files in a row are alike.
	if one, two := key("~abcdefgh_007.f"), key("~abcdefgh_011.f"); one.Family == "" || one.Key != two.Key {
		t.Errorf("%+v, %+v", one, two)
	}
	if one, two := key("N=~abcdefgh_64.f"), key("N=~abcdefgh_128.f"); one.Family != two.Family ||
		sizesOf(one) != "file ~abcdefgh_#.f=64" {
		t.Errorf("%+v, %+v", one, two)
	}
	for _, args := range []string{"~ffffffgh 128 --epochs=90", "128 --epochs=90", ""} {
		if b := key(args); b.Key == a.Key || b.Family == a.Family {
			t.Errorf("%q: %+v", args, b)
		}
	}
}

// What its owner or the site calls an application is its key; the script may say it, too.
func TestANameIsTheKey(t *testing.T) {
	for _, j := range []Evidence{
		{Named: "mine"}, {Named: "mine", Script: []byte("./a.out 5"), Args: "128"}, {Script: []byte("export " +
			"SLURMBRIDGE_APP=mine\n./a.out 5")},
	} {
		if a := Identify(&j); a.Key != "mine" || a.Name != "mine" || a.Family != "" {
			t.Errorf("%s: %+v", j.Script, a)
		}
	}
	if a := of("SLURMBRIDGE_APP='../etc'\n./a.out 5"); a.Name != "a.out" {
		t.Errorf("no name at all: %+v", a)
	}
}

// A script that no shell reads is a text: all of it counts but what only sbatch reads.
func TestOtherLanguages(t *testing.T) {
	for _, first := range []string{"#!/usr/bin/env python3", "#!/usr/bin/perl -w", "#!/bin/csh -f", "#!/usr/bin/env " +
		"-S julia --threads=4", "#! /usr/bin/Rscript"} {
		script := first + "\n#SBATCH --time=5\n# seed 1\nx = 128 # seed 1\n"
		a := of(script)
		if b := of(strings.Replace(script, "=5", "=9", 1)); a.Key == "" || a.Key != b.Key || a.Family != "" {
			t.Errorf("%s: another time limit: %+v, %+v", first, a, b)
		}
		for _, change := range [][2]string{
			{"x = 128", "x = 4096"},
			{"# seed 1\nx", "# seed 2\nx"},
			{"x =", "x  ="},
			{"128 #", "128\n#SBATCH\n#"},
		} {
			if b := of(strings.Replace(script, change[0], change[1], 1)); b.Key == a.Key {
				t.Errorf("%s: with %q it is the same", first, change[1])
			}
		}
	}
	for _, first := range []string{
		"#!/bin/bash", "#!/bin/sh -l", "#!/usr/bin/env bash", "#!/usr/bin/env -S zsh -e",
		"#!/bin/busybox sh", "",
	} {
		alike(t, first+"\n./a.out 5", first+"\n# x\n./a.out  5")
	}
	must.Equal(t, of("#!/usr/bin/env python3\nx = 1").Name, "python", "its program")
}

// What is too large or nested too deeply to be parsed counts as it stands, to its last byte.
func TestWhatIsNotParsed(t *testing.T) {
	for name, s := range map[string]string{
		"brackets":   strings.Repeat("(", 1<<18),
		"commands":   "echo " + strings.Repeat("$(", 1<<17),
		"arithmetic": "echo $((" + strings.Repeat("(", 1<<18),
		"large":      "./a 5\n" + strings.Repeat("x=$((y+1))\n", 1<<15),
		"too large":  strings.Repeat("# no more\n", 1<<16) + "./a",
		"no shell":   "if then fi (",
		"NUL":        "./a \x00 5",
	} {
		a, b, again := of(s+" 128"), of(s+" 4096"), of(s+" 128")
		if a.Key == "" || a.Key == b.Key || a.Family != "" || a.Key != again.Key {
			t.Errorf("%s: %+v, %+v", name, a, b)
		}
	}
}

func TestHostileScriptsTakeNoTime(t *testing.T) {
	big := maxParsed - 200
	args := map[string]string{"arguments": strings.Repeat("a1-", 1<<15)}
	for name, s := range map[string]string{
		"folded":    strings.Repeat("a\\\n", big/3),
		"quotes":    strings.Repeat("'\"", big/2),
		"brackets":  strings.Repeat("(", maxBrackets) + "a" + strings.Repeat(")", maxBrackets),
		"pipes":     strings.Repeat("a|", maxBrackets) + "a",
		"ifs":       strings.Repeat("if ", big/3),
		"nots":      "[[ " + strings.Repeat("! ", big/2) + "a ]]",
		"sums":      "echo $((" + strings.Repeat("1+", big/2) + "1))",
		"backticks": strings.Repeat("`a ", maxBrackets-1),
		"one line":  "./a.out " + strings.Repeat("1 ", big/2),
		"options":   "./a.out " + strings.Repeat("--a-b=1 ", big/8),
		"shells":    strings.Repeat("bash -c 'bash -c \"", big/18),
		"sruns":     strings.Repeat("srun -n 4 ", big/10),
		"high":      strings.Repeat("\xff\xfe", big/2),
		"lines":     strings.Repeat("./a.out 5\n", big/10),
		"hashes":    "./a.out " + strings.Repeat("0a/1b2c3d4e ", big/12),
		"arguments": "./a.out $1",
		"variables": "./a.out \"/tmp/" + strings.Repeat("$a/", big/3) + "\"",
	} {
		start := processorTime(t)
		a := Identify(&Evidence{Script: []byte(s), Args: args[name]})
		// This takes tens of ms of a processor; of the square of its length it would take minutes.
		if took := processorTime(t) - start; took > time.Minute {
			t.Errorf("%s: %v", name, took)
		}
		if a.Key == "" || len(a.Sizes) > maxSizes || len(a.Family) > 64 {
			t.Errorf("%s: %q, %d sizes, family %q", name, a.Key, len(a.Sizes), a.Family)
		}
	}
}

// processorTime is how long processors have computed for this process.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var used syscall.Rusage
	must.OK(t, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano())
}

// What workflow tools submit: whatever differs from job to job of one thing is of no account.
func TestWorkflowTools(t *testing.T) {
	const snakemake = "python -m snakemake --snakefile /w/S --target-jobs '%s' --allowed-rules train --wait-for-files " +
		"'/w/.snakemake/tmp.%s' 'data/%s.txt' --attempt %s --mode remote"
	const parsl = "export JOBNAME=parsl.htex.block-%[1]s.170000%[2]s.5\nset -e\nexport CORES=$(getconf " +
		"_NPROCESSORS_ONLN)\n" +
		"cat << EOF > cmd_$SLURM_JOB_NAME.sh\nprocess_worker_pool.py -a 127.0.0.1,10.1.2.3 -c 1 --port=5%[2]s " +
		"--logdir=/home/u/runinfo/00%[1]s/htex " +
		"--block_id=%[1]s --poll $CORES\nEOF\nsrun --ntasks 1 -l bash cmd_$SLURM_JOB_NAME.sh"
	const nextflow = "#SBATCH -J %[2]s\n# NEXTFLOW TASK: train\nNXF_CHDIR=/s/wd/%[1]s\nnxf_main() {\n  cd " +
		"/s/wd/%[1]s\n  bash -ue /s/wd/%[1]s/.command.sh\n}\n" +
		"touch /s/wd/%[1]s/.command.begin\nnxf_main | tee .command.out"
	const dask = "/usr/bin/python3 -m distributed.cli.dask_worker tcp://%s --name SLURMCluster-%s --nthreads 4 " +
		"--memory-limit 4.00GiB"
	for _, pair := range [][2]string{
		{
			fmt.Sprintf(snakemake, "train:seed=1,lr=0.1", "a1b2c3d4", "x1", "1"),
			fmt.Sprintf(snakemake, "train:seed=2,lr=0.1", "zzb2c3d4", "x2", "2"),
		},
		{
			fmt.Sprintf(snakemake, "train:sample=A12,fold=3", "a1b2c3d4", "A12", "1"),
			fmt.Sprintf(snakemake, "train:sample=B7,fold=4", "zzb2c3d4", "B7", "1"),
		},
		{
			fmt.Sprintf(snakemake, "base64//dHJhaW46c2VlZD0x", "a1b2c3d4", "x", "1"),
			fmt.Sprintf(snakemake, "base64//dHJhaW46c2VlZD0y", "a1b2c3d5", "x", "1"),
		},
		{fmt.Sprintf(parsl, "0", "1234"), fmt.Sprintf(parsl, "3", "4321")},
		{
			fmt.Sprintf(nextflow, "3f/9c1d0e5a7b8c", "nf-train_(1)"),
			fmt.Sprintf(nextflow, "a0/11d0e5a7b8ff", "nf-train_(sampleB)"),
		},
		{fmt.Sprintf(dask, "10.0.0.1:8786", "3"), fmt.Sprintf(dask, "10.0.0.9:40123", "12")},
		{"ray start --address=10.0.0.1:6379 --block", "ray start --address=10.0.0.2:6379 --block"},
		{"jupyter lab --port 8888 --ip=10.1.1.1", "jupyter lab --port 8899 --ip=node7"},
	} {
		alike(t, pair[0], pair[1])
	}
	for _, pair := range [][2]string{
		{
			fmt.Sprintf(snakemake, "train:model=resnet18", "a1b2c3d4", "x", "1"),
			fmt.Sprintf(snakemake, "train:model=resnet152", "a1b2c3d4", "x", "1"),
		},
		{
			fmt.Sprintf(snakemake, "train:seed=1", "a1b2c3d4", "x", "1"),
			fmt.Sprintf(snakemake, "infer:seed=1", "a1b2c3d4", "x", "1"),
		},
		{fmt.Sprintf(nextflow, "3f/9c1d0e5a7b8c", "nf-train_(1)"), fmt.Sprintf(nextflow, "3f/9c1d0e5a7b8c", "nf-infer_(1)")},
	} {
		apart(t, pair[0], pair[1])
	}
	// A pickled function is known by its job's name, and without a name that tells it by nothing.
	for _, script := range []string{
		"srun --output /l/%j_log.out /env/bin/python -u -m submitit.core._submit /home/u/log",
		"Rscript -e 'batchtools::doJobCollection(\"/r/jobs/joba1b2c3d4e5f6.rds\")'",
		"python -u -m executorlib.backend.interactive_serial --host node1 --zmqport 34567",
	} {
		named := func(name string) App { return Identify(&Evidence{Script: []byte(script), Name: name}) }
		if a, b := named("train_huge"), named("eval_small"); a.Key == "" || a.Key == b.Key || a.Family == b.Family ||
			a.Key != named("train_huge").Key {
			t.Errorf("%s: %+v, %+v", script, a, b)
		}
		for _, name := range []string{"", "submitit", "wrap", "joba1b2c3d4e5f6", "20260101"} {
			if a := named(name); a.Key != "" || a.Family != "" {
				t.Errorf("%s called %q is %s", script, name, a.Key)
			}
		}
	}
}

// Profiles are found by keys: one that changes with a release loses its profile.
func TestKeysStay(t *testing.T) {
	for script, want := range map[string]string{
		"#!/bin/bash\n#SBATCH --time=10\nsrun -n 1 lmp -in in.lj -sf gpu\n": "lmp-505ba29df177",
		"python3 train.py --model resnet50 --epochs 90":                     "train-6a7a468508af",
		"mpirun -np 2 ./gmx mdrun \\\n -s a.tpr\n":                          "gmx-8cdca55c502e",
		"singularity exec --nv img.sif python train.py":                     "train-29bc74f73efb",
		"#!/usr/bin/env python3\nprint(1)":                                  "python-afd62aef4ea0",
	} {
		must.Equal(t, of(script).Key, want, script)
	}
}

func TestUnwrap(t *testing.T) {
	for line, want := range map[string]string{
		"lmp -in in.lj": "lmp -in in.lj",
		"srun -n 4 --mpi=pmix --cpu-bind cores ./lmp -in in.lj":                                "lmp -in in.lj",
		"srun --exclusive -N1 lmp":                                                             "lmp",
		"mpirun -np 4 --bind-to core -x OMP_NUM_THREADS --mca btl ^tcp gmx_mpi mdrun -s a.tpr": "gmx_mpi mdrun -s a.tpr",
		"mpiexec.hydra -ppn 2 -genv I_MPI_PIN 1 /opt/bin/vasp":                                 "vasp",
		"singularity exec --nv -B /data:/data img.sif python -u train.py --epochs 3":           "train.py --epochs 3",
		"apptainer -q run --nv docker://org/hoomd:4.2 --steps 100":                             "hoomd:4.2 --steps 100",
		"apptainer run --nv img.sif":                                                           "img.sif",
		"conda run -n env --no-capture-output python -m pkg.train -b 64":                       "pkg.train -b 64",
		"env -u X CUDA_VISIBLE_DEVICES=0 FOO=bar ./a.out 7":                                    "a.out 7",
		"FOO=bar BAZ=1 ./a.out 7":                                                              "a.out 7",
		"/usr/bin/time -v -o t.log numactl --cpunodebind=0 -m 0 ./a.out 7":                     "a.out 7",
		"bash -l run.sh 5":                     "run.sh 5",
		"python3.11 -W ignore -X dev train.py": "train.py",
		"torchrun --standalone --nproc_per_node=1 --master_port 1 train.py --b 2": "train.py --b 2",
		"python -m torch.distributed.run --nproc-per-node 1 sub/train.py":         "train.py",
		"python -O -c 'print(1)' 5":                "python 5",
		"srun python -m mpi4py run.py 9":           "run.py 9",
		"timeout -k 5 3600 ./a.out":                "a.out",
		"nsys profile -o rep --stats true ./a.out": "a.out",
		"Rscript --vanilla fit.R 5":                "fit.R 5",
		"module":                                   "module",
		"srun":                                     "srun",
		"srun --":                                  "srun",
		"singularity pull x":                       "singularity",
		"srun bash -c x y":                         "x y",
	} {
		words := strings.Fields(strings.ReplaceAll(line, "'", ""))
		c := unwrap(words)
		must.Equal(t, strings.Join(append([]string{base(words[c.program])}, words[c.args:]...), " "), want, line)
	}
}

func TestCompare(t *testing.T) {
	a, b, c, none := of("./a.out 5"), of("./a.out 6"), of("./a.out 5\n./b.out"), App{}
	for _, x := range []struct {
		one, two *App
		want     Relation
		why      string
	}{
		{&a, &a, Same, "all parts that count are equal"},
		{&a, &b, Relative, "they differ in argument 1 (5 and 6)"},
		{&a, &c, Others, `only the second has "./b.out"`},
		{&none, &a, Unknown, "one of them is not recognised"},
	} {
		if got, why := Compare(x.one, x.two); got != x.want || why != x.why {
			t.Errorf("%s and %s are %s, want %s: %s", x.one.Key, x.two.Key, got, x.want, why)
		}
	}
}

func FuzzIdentify(f *testing.F) {
	f.Add("#!/bin/sh\nsrun ./a.out\n", "", "/x", "")
	f.Add("\\\n\\\n\xff\x00'\"../../etc", "~abcdefgh_007.f 5", "/x/20260101", "nf-x_(1)")
	f.Add("export N=4k\nsrun -n 2 singularity exec --nv i.sif bash -c 'python -m a -n1000 64x64 in_5.dat >o' &", "", "",
		"")
	f.Add("a $(b `c ${d 'e \"f\x01-n 1e999 0x0 .5 5. 1x 1xx2", "1e999", "3f/9c1d0e5a7b8c", "a")
	f.Add("python -m snakemake --target-jobs base64//dHJhaW46c2VlZD0x t:i=1,j=2", "", "", "")
	f.Add("cd /a; bash -c 'cd b; ./c' <<E >&2 | tee x\nE\n", "", "", "")
	f.Fuzz(func(t *testing.T, script, args, dir, name string) {
		j := &Evidence{Name: name, Script: []byte(script), Args: args, Dir: dir}
		a := Identify(j)
		for _, key := range []string{a.Key, a.Family} {
			if strings.ContainsAny(key, " /\n\"'\\") || len(key) > 64 {
				t.Errorf("key %q", key)
			}
		}
		if len(a.Sizes) > maxSizes || a.Family == "" && a.Sizes != nil {
			t.Errorf("family %q, %d sizes", a.Family, len(a.Sizes))
		}
		printable := func(s string) bool {
			return len(s) <= 40 && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
		}
		for _, s := range a.Sizes {
			if !(s.Value > 0) || math.IsInf(s.Value, 0) || !printable(s.Name) {
				t.Errorf("size %+v", s)
			}
		}
		for _, m := range a.Masked {
			if !printable(m.Text) {
				t.Errorf("masked %+v", m)
			}
		}
		must.Equal(t, Identify(j), a)
	})
}
