# `make generate` writes this file from the parameters of template.yaml.
# An omitted variable has the default of the template.

locals {
  given = {
    FleetName              = var.fleet_name
    HyperPodClusterArn     = var.hyperpod_cluster_arn
    KubernetesClusters     = var.kubernetes_clusters == null ? null : join(",", var.kubernetes_clusters)
    Mode                   = var.mode
    Admission              = var.admission
    Schedules              = var.schedules
    DrillsMayAct           = var.drills_may_act
    Policy                 = var.policy
    OperatorPrincipals     = var.operator_principals
    JobNamespace           = var.job_namespace
    JobServiceAccount      = var.job_service_account
    CheckpointBuckets      = var.checkpoint_buckets == null ? null : join(",", var.checkpoint_buckets)
    CheckpointEncryption   = var.checkpoint_encryption == null ? null : join(",", var.checkpoint_encryption)
    PageEmail              = var.page_email
    SubnetIds              = var.subnet_ids == null ? null : join(",", var.subnet_ids)
    SecurityGroupIds       = var.security_group_ids == null ? null : join(",", var.security_group_ids)
    PythonRuntime          = var.python_runtime
    Architecture           = var.architecture
    CordonConcurrency      = var.cordon_concurrency
    SnapStart              = var.snap_start
    LambdaConcurrencyLimit = var.lambda_concurrency_limit
    TableProtection        = var.table_protection
    LogRetentionDays       = var.log_retention_days
    ApiLogRole             = var.api_log_role
    SageMakerEndpoint      = var.sagemaker_endpoint
    EksEndpoint            = var.eks_endpoint
    AutoScalingEndpoint    = var.auto_scaling_endpoint
    LocalEngine            = var.local_engine
  }
  parameters = { for name, value in local.given : name => tostring(value) if value != null }
}

variable "fleet_name" {
  description = "Name of the fleet of this stack. Labels, metrics and API paths contain the name. Default: \"main\"."
  type        = string
  default     = null

  validation {
    condition     = var.fleet_name == null ? true : can(regex("^([a-z0-9](-*[a-z0-9]){0,31})$", var.fleet_name))
    error_message = "fleet_name must match [a-z0-9](-*[a-z0-9]){0,31}."
  }

  validation {
    condition     = var.fleet_name == null ? true : length(var.fleet_name) <= 63
    error_message = "fleet_name has at most 63 characters."
  }
}

variable "hyperpod_cluster_arn" {
  description = "ARN of the HyperPod cluster; empty if the fleet has none. Default: empty."
  type        = string
  default     = null

  validation {
    condition     = var.hyperpod_cluster_arn == null ? true : can(regex("^((arn:aws[a-z-]*:sagemaker:[a-z0-9-]+:[0-9]{12}:cluster/[a-z0-9]{12})?)$", var.hyperpod_cluster_arn))
    error_message = "hyperpod_cluster_arn must match (arn:aws[a-z-]*:sagemaker:[a-z0-9-]+:[0-9]{12}:cluster/[a-z0-9]{12})?."
  }
}

variable "kubernetes_clusters" {
  description = "Names of the EKS clusters in this account and region. HyperPod's own EKS cluster comes first. Default: \"none\"."
  type        = list(string)
  default     = null
}

variable "mode" {
  description = "Limit of Evenkeel's actions. observe records decisions and changes nothing. recommend asks a person before it acts. act acts without a question. Default: \"observe\"."
  type        = string
  default     = null

  validation {
    condition     = var.mode == null ? true : contains(["observe", "recommend", "act"], var.mode)
    error_message = "mode must be one of observe, recommend, act."
  }
}

variable "admission" {
  description = "Scheduler that admits jobs. With kueue, Evenkeel submits each job to the LocalQueue of its team. Default: \"evenkeel\"."
  type        = string
  default     = null

  validation {
    condition     = var.admission == null ? true : contains(["evenkeel", "kueue"], var.admission)
    error_message = "admission must be one of evenkeel, kueue."
  }
}

variable "schedules" {
  description = "Whether the schedules run, and the alarms on missing runs page. While they are off, events still open recoveries, and submissions still start scheduling cycles. Keep them off until the access entries exist and `evenkeel doctor` reports no failure. Default: \"off\"."
  type        = string
  default     = null

  validation {
    condition     = var.schedules == null ? true : contains(["on", "off"], var.schedules)
    error_message = "schedules must be one of on, off."
  }
}

variable "drills_may_act" {
  description = "Whether Evenkeel accepts events of the source evenkeel.drill and repairs nodes because of them. Keep it false in a fleet that runs real training. Default: \"false\"."
  type        = string
  default     = null

  validation {
    condition     = var.drills_may_act == null ? true : contains(["true", "false"], var.drills_may_act)
    error_message = "drills_may_act must be one of true, false."
  }
}

variable "policy" {
  description = "Shipped policy (limits and deadlines) to use. local has short times, for the local data centre. Default: \"production\"."
  type        = string
  default     = null

  validation {
    condition     = var.policy == null ? true : contains(["production", "local"], var.policy)
    error_message = "policy must be one of production, local."
  }
}

variable "operator_principals" {
  description = "ARNs (with their paths) of the IAM roles and users that operate the fleet, separated by commas. They may read the jobs and logs of every team, resend events and send a test page. The policies EvenkeelOperator and EvenkeelAdmin alone do not allow this. Default: empty."
  type        = string
  default     = null

  validation {
    condition     = var.operator_principals == null ? true : can(regex("^((arn:aws[a-z-]*:iam::[0-9]{12}:(role|user)/[!-+.-~]+(,arn:aws[a-z-]*:iam::[0-9]{12}:(role|user)/[!-+.-~]+)*)?)$", var.operator_principals))
    error_message = "operator_principals must match (arn:aws[a-z-]*:iam::[0-9]{12}:(role|user)/[!-+.-~]+(,arn:aws[a-z-]*:iam::[0-9]{12}:(role|user)/[!-+.-~]+)*)?."
  }
}

variable "job_namespace" {
  description = "Kubernetes namespace of the jobs. Default: \"evenkeel-jobs\"."
  type        = string
  default     = null
}

variable "job_service_account" {
  description = "Kubernetes service account of the training pods. Default: \"trainer\"."
  type        = string
  default     = null
}

variable "checkpoint_buckets" {
  description = "ARNs of the buckets that hold the jobs' checkpoints. Default: empty."
  type        = list(string)
  default     = null
}

variable "checkpoint_encryption" {
  description = "ARNs of your own KMS keys that encrypt these buckets. Default: empty."
  type        = list(string)
  default     = null
}

variable "page_email" {
  description = "Email address that receives the pages; empty if you subscribe to the page topic in another way. Default: empty."
  type        = string
  default     = null
}

variable "subnet_ids" {
  description = "Private subnets for the functions that call Kubernetes; empty if the Kubernetes endpoints are public. Default: empty."
  type        = list(string)
  default     = null
}

variable "security_group_ids" {
  description = "Security groups of the functions that call Kubernetes. Default: empty."
  type        = list(string)
  default     = null
}

variable "python_runtime" {
  description = "Lambda runtime of every function and of the layer. Default: \"python3.13\"."
  type        = string
  default     = null

  validation {
    condition     = var.python_runtime == null ? true : can(regex("^(python3\\.1[1-9])$", var.python_runtime))
    error_message = "python_runtime must match python3\\.1[1-9]."
  }
}

variable "architecture" {
  description = "Processor of every function and of the layer. Default: \"arm64\"."
  type        = string
  default     = null

  validation {
    condition     = var.architecture == null ? true : contains(["arm64", "x86_64"], var.architecture)
    error_message = "architecture must be one of arm64, x86_64."
  }
}

variable "cordon_concurrency" {
  description = "Concurrent Lambda invocations reserved for each of receive_event, plan_recovery and cordon_node. Then other functions of the account cannot delay a cordon. 0 reserves none; otherwise at least 10. The account's limit must leave 100 invocations unreserved. Default: \"0\"."
  type        = string
  default     = null

  validation {
    condition     = var.cordon_concurrency == null ? true : can(regex("^(0|[1-9][0-9]{1,3})$", var.cordon_concurrency))
    error_message = "cordon_concurrency must match 0|[1-9][0-9]{1,3}."
  }
}

variable "snap_start" {
  description = "Whether Lambda starts receive_event, plan_recovery and cordon_node from snapshots instead of importing their code. AWS charges for each snapshot, also of older versions. After 14 days without an invocation, the first one waits for a new snapshot. Default: \"off\"."
  type        = string
  default     = null

  validation {
    condition     = var.snap_start == null ? true : contains(["on", "off"], var.snap_start)
    error_message = "snap_start must be one of on, off."
  }
}

variable "lambda_concurrency_limit" {
  description = "The account's limit of concurrent Lambda invocations in this region. An alarm compares it with the use. Default: 1000."
  type        = number
  default     = null

  validation {
    condition     = var.lambda_concurrency_limit == null ? true : var.lambda_concurrency_limit >= 1
    error_message = "lambda_concurrency_limit must be at least 1."
  }
}

variable "table_protection" {
  description = "Whether DynamoDB refuses to delete the tables. The protection begins when Schedules is on, so that a first deployment that fails can still remove its empty tables. Default: \"on\"."
  type        = string
  default     = null

  validation {
    condition     = var.table_protection == null ? true : contains(["on", "off"], var.table_protection)
    error_message = "table_protection must be one of on, off."
  }
}

variable "log_retention_days" {
  description = "Retention of every log group, in days. Default: 30."
  type        = number
  default     = null

  validation {
    condition     = var.log_retention_days == null ? true : contains([1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731], var.log_retention_days)
    error_message = "log_retention_days must be one of 1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731."
  }
}

variable "api_log_role" {
  description = "API Gateway writes access logs with one role per account and region. The value off writes no access log. The value present uses the existing role, and fails in an account without a role. The value set-up creates a role for the whole account and region. The role stays if the stack is deleted. Default: \"off\"."
  type        = string
  default     = null

  validation {
    condition     = var.api_log_role == null ? true : contains(["off", "present", "set-up"], var.api_log_role)
    error_message = "api_log_role must be one of off, present, set-up."
  }
}

variable "sagemaker_endpoint" {
  description = "Endpoint of a HyperPod emulator; empty for AWS. Default: empty."
  type        = string
  default     = null
}

variable "eks_endpoint" {
  description = "Endpoint of an EKS emulator; empty for AWS. Default: empty."
  type        = string
  default     = null
}

variable "auto_scaling_endpoint" {
  description = "Endpoint of an emulator of EC2 Auto Scaling; empty for AWS. Default: empty."
  type        = string
  default     = null
}

variable "local_engine" {
  description = "Whether the stack runs on the local AWS emulator. The emulator has no TLS and no metric math, and accepts task tokens only for the ARN `*`. Default: \"false\"."
  type        = string
  default     = null

  validation {
    condition     = var.local_engine == null ? true : contains(["true", "false"], var.local_engine)
    error_message = "local_engine must be one of true, false."
  }
}
