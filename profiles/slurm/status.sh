# What Snakemake asks of a job: running, success or failed. A question that finds no answer is asked again.
case "$(sacct --jobs "$1" --allocations --noheader --parsable2 --format State | head -n 1)" in
  COMPLETED) echo success ;;
  "" | PENDING* | CONFIGURING* | RUNNING* | COMPLETING* | SUSPENDED* | REQUEUED* | RESIZING*) echo running ;;
  *) echo failed ;;
esac
